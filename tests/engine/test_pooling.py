"""Requests that end with a vector of their prompt: the same vector alone or in any batch, however
the prompt is cut, found in the cache, preempted or swapped; exactly, for the toy's states are
whole numbers.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.pooling import vector_bytes
from quire.engine.runner import Runner, RunnerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Pooling, PoolingKind, Sampling, Stopping
from quire.scheduler.step import NewRequestData, SeqChunk, Step, StepResult
from tests.engine.failures.test_memory_runs_out import BLOCK_SIZE, Narrow
from tests.engine.invariants import COMMON, check_invariants, pooled, pooled_arrivals, shapes
from tests.engine.toy_engine import VOCAB_SIZE, Arrival, Shape, World, play, vector_alone

LAST, MEAN = Pooling(PoolingKind.LAST), Pooling(PoolingKind.MEAN)
NO_SAMPLING = Sampling(temperature=0.0)
ROOMY = Shape(4, 80, 6, 64, caches_prefixes=True, watermark=0.0, late=False)


def text(request_id: str, prompt: tuple[int, ...], num_new: int = 4) -> NewRequest:
    return NewRequest(request_id, prompt, NO_SAMPLING, Stopping(num_new))


@given(shapes(), pooled_arrivals())
def test_same_vector_alone_or_in_any_batch(shape: Shape, script: list[Arrival]) -> None:
    check_invariants(shape, script)


@pytest.mark.parametrize("pooling", [LAST, MEAN], ids=["last", "mean"])
@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_a_preempted_prompt_has_the_vector_it_would_have(
    pooling: Pooling, mode: PreemptionMode
) -> None:
    """Texts that grow take the blocks of prompts that are half computed."""
    shape = Shape(2, 24, 4, 5, True, 0.0, late=True, num_host_blocks=24, preemption_mode=mode)
    script = [Arrival(text(f"r{n}", COMMON[n : n + 4], 14), step=0) for n in range(3)]
    script.append(Arrival(pooled(text("pooled", COMMON[9:33]), pooling), step=3))
    check_invariants(shape, script)
    world = play(shape, script, max_steps=1000)
    put_back = {Reason.PREEMPTED_FOR_BLOCKS, Reason.SWAPPED_OUT} & _reasons(world, "pooled")
    assert put_back
    if pooling is MEAN or mode is PreemptionMode.RECOMPUTE:
        assert put_back == {Reason.PREEMPTED_FOR_BLOCKS}


def test_the_last_token_is_pooled_over_a_cached_prefix_and_a_mean_is_not() -> None:
    script = [
        Arrival(text("first", COMMON[:14]), step=0),
        Arrival(pooled(text("last", COMMON[:14]), LAST), step=10),
        Arrival(pooled(text("mean", COMMON[:14]), MEAN), step=20),
        Arrival(text("after", COMMON[:14]), step=30),
    ]
    check_invariants(ROOMY, script)
    world = play(ROOMY, script, max_steps=100)
    assert [_cached(world, name) for name in ("last", "mean", "after")] == [12, 0, 12]


def test_a_pooled_prompt_is_cached_for_texts() -> None:
    script = [
        Arrival(pooled(text("mean", COMMON[:14]), MEAN), step=0),
        Arrival(text("after", COMMON[:14]), step=10),
    ]
    world = play(ROOMY, script, max_steps=100)
    assert _cached(world, "after") == 12


def test_a_pooled_request_may_take_the_whole_context() -> None:
    new = pooled(text("all", COMMON), MEAN)
    world = play(ROOMY, [Arrival(new, step=0)], max_steps=10)
    assert world.deltas["all"][-1].vector == vector_alone(new)
    assert world.scheduler.stats.num_prompt_tokens == len(COMMON)


@given(
    st.lists(
        st.tuples(st.integers(1, 11), st.sampled_from([None, *PoolingKind])), min_size=1, max_size=6
    ),
    st.integers(1, 40),
)
def test_a_step_without_memory_pools_in_parts(
    prompts: list[tuple[int, PoolingKind | None]], num_tokens: int
) -> None:
    in_parts = replace(_result(num_tokens, prompts), step_failure=None)
    assert in_parts == _result(1000, prompts)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    st.integers(1, 20),
)
def test_a_vector_is_cut_before_it_is_normalised(state: list[float], num_dimensions: int) -> None:
    cut = vector_bytes(state, Pooling(PoolingKind.LAST, num_dimensions, is_normalized=False))
    assert (
        np.frombuffer(cut, np.float32).tolist()
        == np.array(state[:num_dimensions], np.float32).tolist()
    )
    normed = np.frombuffer(vector_bytes(state, Pooling(PoolingKind.LAST, num_dimensions)), "f4")
    length = np.linalg.norm(np.array(state[:num_dimensions]))
    assert np.linalg.norm(normed.astype(np.float64)) == pytest.approx(
        1.0 if length else 0.0, abs=1e-6
    )


def _reasons(world: World, request_id: str) -> set[Reason]:
    finish = world.deltas[request_id][-1].finish
    assert finish is not None
    return {event.reason for event in finish.timeline}


def _cached(world: World, request_id: str) -> int:
    finish = world.deltas[request_id][-1].finish
    assert finish is not None
    return finish.num_cached_tokens


def _result(num_tokens: int, prompts: list[tuple[int, PoolingKind | None]]) -> StepResult:
    """All prompts in one step, of a model that has memory for so many tokens."""
    runner = Runner(RunnerConfig(8, 16, BLOCK_SIZE, "cpu"), Narrow(num_tokens))
    new_requests, chunks, next_block = [], [], 1
    for index, (length, kind) in enumerate(prompts):
        prompt = tuple((7 * index + 3 * position) % VOCAB_SIZE for position in range(length))
        new = text(str(index), prompt)
        if kind is not None:
            new = pooled(new, Pooling(kind))
        num_blocks = length // BLOCK_SIZE + 1
        blocks = tuple(range(next_block, next_block + num_blocks))
        next_block += num_blocks
        new_requests.append(NewRequestData(new, prompt, (blocks,)))
        chunks.append(SeqChunk(new.id, 0, length, (), samples=kind is None))
    num_all = sum(length for length, _ in prompts)
    return runner.run(Step(1, (), tuple(new_requests), tuple(chunks), num_all))
