"""The start, whole, on a stand-in for a GPU: in each mode it captures the steps that are to be, and
serves what `generate` says."""

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from quire.engine.config import MemoryConfig, ModelConfig
from quire.engine.messages import EngineFacts
from quire.engine.startup.null_batch import NullBatches
from quire.models.batch import Batch
from quire.models.config import CUDAGraphMode
from quire.scheduler.cost import PreemptionMode
from tests.engine.startup.captured_starts import (
    StandInGPU,
    config_of,
    start,
    submit,
    texts_of,
)
from tests.interpreter import spare_the_interpreter
from tests.models.parallel.rank_processes import JOBS
from tests.models.reference import BLOCK_SIZE, MAX_LEN, References, fidelity_prompts

pytest.importorskip("triton", reason="triton is not installed")

NUM_NEW = 6
ASKED = (5, 4, 6, 7)
"""The prompts that are asked, of which the first two begin alike."""
TIGHT = MemoryConfig(kv_cache_tokens=MAX_LEN + 4 * BLOCK_SIZE, swap_space=0.01)
"""So few blocks that a request is preempted."""
RESERVED = ("activation", "scratch", "graphs", "kv")
"""The parts of a memory receipt that a start takes beside the weights."""
WHOLE = "cuda_graphs, of up to 4 requests"
TIMEOUT_S = 100.0


class Case(NamedTuple):
    """A mode, the way in which steps are taken, and the words for how they are launched: those of
    one token a request, and the others."""

    mode: CUDAGraphMode
    decode: str
    prefill: str
    family: str = "llama"
    preemption: PreemptionMode = PreemptionMode.SWAP
    is_overlapped: bool = True


def in_pieces(num_layers: int) -> str:
    return f"cuda_graphs in pieces, {2 * (num_layers + 1)} for 2 sizes of up to 64 tokens"


def not_graphs(mode: CUDAGraphMode) -> str:
    return f"eager (not cuda_graphs: --cudagraph-mode {mode})"


LAUNCHED = not_graphs(CUDAGraphMode.NONE)
CASES = (
    Case(CUDAGraphMode.NONE, LAUNCHED, LAUNCHED),
    Case(CUDAGraphMode.PIECEWISE, in_pieces(3), in_pieces(3), is_overlapped=False),
    Case(CUDAGraphMode.FULL_DECODE_ONLY, WHOLE, not_graphs(CUDAGraphMode.FULL_DECODE_ONLY)),
    Case(CUDAGraphMode.FULL_AND_PIECEWISE, WHOLE, in_pieces(4), "gemma2"),
    Case(
        CUDAGraphMode.FULL_AND_PIECEWISE,
        WHOLE,
        in_pieces(3),
        preemption=PreemptionMode.RECOMPUTE,
        is_overlapped=False,
    ),
)
IN_EVERY_RUN = 3
"""The case of every run: its mode has whole graphs and pieces."""


def asked() -> list[list[int]]:
    return [fidelity_prompts()[index] for index in ASKED]


def expected(references: References, family: str = "llama") -> list[list[int]]:
    return [references.greedy_texts(family)[index][:NUM_NEW] for index in ASKED]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case is CASES[IN_EVERY_RUN] else pytest.mark.long)
        for case in CASES
    ],
    ids=lambda case: f"{case.mode}-{case.preemption}",
)
def test_a_start_in_each_mode_serves_what_generate_says(case: Case, references: References) -> None:
    model, gpu = ModelConfig("", cudagraph_mode=case.mode), StandInGPU()
    config = config_of(
        references.checkpoint(case.family), model, TIGHT, is_overlapped=case.is_overlapped
    )
    scheduling = replace(config.scheduling, preemption_mode=case.preemption)
    engine, facts = start(replace(config, scheduling=scheduling), gpu)
    assert (facts.decode, facts.prefill) == (case.decode, case.prefill)
    wanted = expected(references, case.family)
    assert texts_of(engine, asked(), NUM_NEW) == wanted
    assert texts_of(engine, asked()[:1], NUM_NEW) == wanted[:1]  # of which blocks are cached
    stats = engine.stats
    assert stats.num_prefix_hits > 0 and stats.num_preemptions > 0
    assert (stats.num_swaps > 0) is (case.preemption is PreemptionMode.SWAP)
    assert (stats.num_steps_full > 0) is case.mode.has_full
    assert (stats.num_steps_piecewise > 0) is case.mode.has_pieces
    assert (stats.num_steps_launched > 0) is not case.mode.has_pieces
    assert (gpu.num_replays > 0) is (case.mode is not CUDAGraphMode.NONE)


@pytest.mark.long  # budgets of a shared GPU are in every run, test_memory.py
def test_engines_that_share_a_gpu_each_keep_to_their_share(references: References) -> None:
    """The second starts where the memory that the first has taken is no longer free; both then take
    their steps in turn."""
    gpu = StandInGPU(total=320 << 20)
    shared = MemoryConfig(gpu_memory_utilization=0.45, swap_space=0.0, is_device_shared=True)
    config = config_of(references.checkpoint("llama"), ModelConfig(""), shared)
    engines = []
    for _ in range(2):
        engine, facts = start(config, gpu)
        taken = sum(each.num_bytes for each in facts.receipt if each.kind in RESERVED)
        assert 0.4 * gpu.total < taken <= 0.45 * gpu.total
        gpu.used += taken
        assert facts.decode == WHOLE
        engines.append(engine)
    for engine in engines:
        submit(engine, asked(), NUM_NEW)
    texts: list[list[list[int]]] = [[[] for _ in ASKED] for _ in engines]
    while any(engine.has_work for engine in engines):
        for engine, own in zip(engines, texts, strict=True):
            for delta in engine.step().deltas if engine.has_work else ():
                own[int(delta.request_id)] += delta.token_ids
    assert texts == [expected(references)] * 2
    assert all(each.num_replays > 0 for each in gpu.captures)


class RanksAnswer(NamedTuple):
    """The texts and facts of an engine of several ranks, and the number of replays on rank 0."""

    texts: list[list[int]]
    facts: EngineFacts
    num_replays: int


def serve_with_ranks(folder: Path) -> RanksAnswer:
    """Start an engine of two ranks and serve. This process must have no other thread: then its
    ranks are forked, with the stand-in."""
    torch.set_num_threads(1)
    spare_the_interpreter()
    gpu = StandInGPU()
    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    model = ModelConfig("", cudagraph_mode=mode, tensor_parallel_size=2)
    engine, facts = start(config_of(folder, model, TIGHT), gpu)
    try:
        return RanksAnswer(texts_of(engine, asked(), NUM_NEW), facts, gpu.num_replays)
    finally:
        engine.close()


@pytest.mark.long  # test_captured_ranks.py has ranks that replay in every run
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether a fork may be")
def test_two_ranks_start_and_serve_what_generate_says(references: References) -> None:
    folder = references.checkpoint("llama")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([JOBS])
    with ProcessPoolExecutor(1, context) as executor:
        answer = executor.submit(serve_with_ranks, folder)
        texts, facts, num_replays = answer.result(TIMEOUT_S)
    assert (facts.decode, facts.prefill, len(facts.ranks)) == (WHOLE, in_pieces(3), 2)
    assert texts == expected(references)
    assert num_replays > NUM_NEW


@contextmanager
def noted_launches() -> Iterator[list[dict[str, Any]]]:
    """Lend the keyword arguments of all launches of Triton's kernels."""
    from triton.runtime.interpreter import InterpretedFunction

    run, launches = InterpretedFunction.run, []

    def noted(kernel: Any, *args: Any, **options: Any) -> None:
        launches.append(options)
        run(kernel, *args, **options)

    with patch.object(InterpretedFunction, "run", noted):
        yield launches


@pytest.mark.long  # test_recurrent_decode.py has captured steps in every run
@pytest.mark.parametrize("family", ["qwen3_5_text", "mamba", "kimi_linear"])
def test_a_start_captures_decode_steps_with_recurrent_layers(
    family: str, references: References
) -> None:
    """By Triton's kernels, as on a GPU; a prompt that comes again goes on from its states."""
    num_tokens, gpu = None if family == "mamba" else 4 * MAX_LEN, StandInGPU()
    memory = MemoryConfig(kv_cache_tokens=num_tokens, num_recurrent_states=20)
    config = config_of(references.checkpoint(family), ModelConfig(""), memory)
    prompts = [prompt[:12] for prompt in asked()[:3]]
    engine, facts = start(config, gpu)
    assert (facts.decode, facts.prefill) == (WHOLE, not_graphs(CUDAGraphMode.FULL_DECODE_ONLY))
    texts = texts_of(engine, prompts, NUM_NEW)
    assert texts_of(engine, prompts, NUM_NEW) == texts
    stats = engine.stats
    engine.close()
    assert stats.num_steps_full > 0 and gpu.num_replays > 0
    eager = replace(config.model, cudagraph_mode=CUDAGraphMode.NONE)
    engine, facts = start(replace(config, model=eager), StandInGPU())
    assert (facts.decode, facts.prefill) == (LAUNCHED, LAUNCHED)
    assert texts_of(engine, prompts, NUM_NEW) == texts
    engine.close()


def test_attention_is_compiled_for_one_block_size(references: References) -> None:
    model = ModelConfig("", cudagraph_mode=CUDAGraphMode.NONE)
    with noted_launches() as launches:
        start(config_of(references.checkpoint("llama"), model, TIGHT), StandInGPU())
    sizes = {each["BLOCK_SIZE"] for each in launches if "BLOCK_SIZE" in each}
    assert sizes == {BLOCK_SIZE}


def test_a_block_table_of_another_width_is_seen(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a column a token, as a start once warmed its captured steps up with."""
    chunk = NullBatches.chunk

    def wide_chunk(batches: NullBatches, start: int, num_tokens: int) -> Batch:
        return chunk(replace(batches, block_size=1), start, num_tokens)

    monkeypatch.setattr(NullBatches, "chunk", wide_chunk)
    with pytest.raises(RuntimeError, match="must match"):
        start(config_of(references.checkpoint("llama"), ModelConfig(""), TIGHT), StandInGPU())
