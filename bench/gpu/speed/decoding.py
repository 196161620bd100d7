"""An engine in this process, and what its steps take: requests of one length at once, of random
tokens."""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bench.gpu.speed.device_time import DeviceTime, profile_steps
from bench.gpu.speed.llama import MAX_MODEL_LEN
from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.models.config import CUDAGraphMode, ModelDtype
from quire.scheduler.request import NewRequest, Sampling, Stopping

GRAPHS = "cuda_graphs"
"""The facts of an engine say so of decode steps that are captured."""
GREEDY = Sampling(temperature=0.0)


class Load(NamedTuple):
    """The requests that are sent: tokens of prompt and of output, at each of `batches` at once;
    then one prompt of `num_long` tokens. Each run is repeated."""

    num_prompt: int
    num_output: int
    num_long: int
    batches: tuple[int, ...]
    num_repeats: int = 3

    @property
    def context(self) -> float:
        """The mean length of contexts while all requests decode."""
        return self.num_prompt + self.num_output / 2


LOAD = Load(128, 128, 2048, (1, 32, 128))
REHEARSED_LOAD = Load(8, 6, 24, (1, 3), num_repeats=1)


class Decoded(NamedTuple):
    """One run of requests at once. `step_s`: the median of steps in which all of them decoded.
    `tokens_s`: tokens of output a second, from the first submitted to the last token."""

    tokens_s: float
    step_s: float


def build_engine(
    folder: Path,
    device: torch.device,
    load: Load,
    *,
    mode: CUDAGraphMode = CUDAGraphMode.FULL_DECODE_ONLY,
) -> Engine:
    """Build an engine in bfloat16, with as much memory for K and V as the load needs.

    Raises RuntimeError where a GPU would be measured without its kernels, or without the graphs of
    its mode.
    """
    most = max(load.batches)
    num_tokens = most * (load.num_prompt + load.num_output + 32) + MAX_MODEL_LEN
    config = EngineConfig(
        ModelConfig(
            str(folder), device=str(device), dtype=ModelDtype.BFLOAT16, cudagraph_mode=mode
        ),
        memory=MemoryConfig(kv_cache_tokens=num_tokens, swap_space=0, enable_prefix_caching=False),
        scheduling=SchedulingConfig(max_model_len=MAX_MODEL_LEN, max_num_seqs=most),
    )
    engine, facts = build_quietly(config)
    is_missed = (
        facts.attention != "triton"
        or (mode is not CUDAGraphMode.NONE and not facts.decode.startswith(GRAPHS))
        or (mode.has_pieces and not facts.prefill.startswith(GRAPHS))
    )
    if device.type == "cuda" and is_missed:
        raise RuntimeError(
            f"attention is {facts.attention}, decode steps are {facts.decode}, others "
            f"{facts.prefill}"
        )
    return engine


def prompts_of(num_requests: int, length: int, vocab: int, seed: int = 0) -> list[list[int]]:
    """Return prompts of random tokens, other ones for each seed."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(length)] for _ in range(num_requests)]


def decode(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    num_output: int,
    sampling: Sampling = GREEDY,
) -> Decoded:
    """Run requests to their end."""
    began_s, taken_s = time.perf_counter(), []
    _submit(engine, prompts, num_output, sampling)
    while engine.has_work:
        step_began_s = time.perf_counter()
        output = engine.step()
        if len(output.deltas) == output.num_tokens == len(prompts):
            taken_s.append(time.perf_counter() - step_began_s)
    took_s = time.perf_counter() - began_s
    return Decoded(len(prompts) * num_output / took_s, statistics.median(taken_s))


def first_token_s(engine: Engine, prompt: Sequence[int]) -> float:
    """Return the seconds to the one token of a prompt."""
    began_s = time.perf_counter()
    _submit(engine, [prompt], 1, GREEDY)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began_s


def profile_decode(
    engine: Engine, prompts: Sequence[Sequence[int]], num_output: int, device: torch.device
) -> DeviceTime:
    """Profile some steps in the middle, when all requests decode."""
    _submit(engine, prompts, num_output, GREEDY)
    num_begun = 0
    while num_begun < num_output // 3:
        output = engine.step()
        num_begun += len(output.deltas) == output.num_tokens == len(prompts)
    found = profile_steps(device, engine.step, max(1, num_output // 5))
    while engine.has_work:
        engine.step()
    return found


def _submit(
    engine: Engine, prompts: Sequence[Sequence[int]], num_output: int, sampling: Sampling
) -> None:
    for index, prompt in enumerate(prompts):
        new = NewRequest(str(index), tuple(prompt), sampling, Stopping(num_output))
        refusal = engine.submit(new)
        if refusal is not None:
            raise RuntimeError(refusal.message)
