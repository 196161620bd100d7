"""The invariants on the toy model, under every policy: the same text alone or in any batch,
balanced accounts, an end, in time where there is a limit. `test_planted_faults.py` shows that
faults are found.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.engine.invariants import (
    COMMON,
    GRAMMAR_SAMPLINGS,
    arrivals,
    bursts,
    check_invariants,
    recurrent_shapes,
    scored_arrivals,
    shapes,
)
from tests.engine.toy_engine import GRAMMARS, Arrival, Shape, World, alone, play

TIGHT = Shape(2, 14, 6, 12, caches_prefixes=True, watermark=0.0, late=False)


@given(shapes(), arrivals())
def test_same_text_alone_or_in_any_batch(shape: Shape, script: list[Arrival]) -> None:
    check_invariants(shape, script)


@given(shapes(), arrivals(GRAMMAR_SAMPLINGS))
def test_forced_tokens_are_those_that_would_come_one_by_one(
    shape: Shape, script: list[Arrival]
) -> None:
    check_invariants(shape, script)


@given(shapes(), scored_arrivals(arrivals()))
def test_prompts_are_scored_whole_and_once(shape: Shape, script: list[Arrival]) -> None:
    check_invariants(replace(shape, preemption_mode=PreemptionMode.SWAP), script)


@given(recurrent_shapes(), st.one_of(arrivals(), bursts()))
def test_same_text_with_recurrent_layers(shape: Shape, script: list[Arrival]) -> None:
    check_invariants(shape, script)


def test_a_prompt_that_is_swapped_out_before_its_scores_have_come_is_scored() -> None:
    shape = replace(TIGHT, late=True, num_host_blocks=60, preemption_mode=PreemptionMode.SWAP)
    for length in range(2, 9):
        news = [
            NewRequest(
                f"r{n}", COMMON[n : n + length], Sampling(seed=n), Stopping(12), prompt_logprobs=0
            )
            for n in range(6)
        ]
        check_invariants(shape, [Arrival(new, step) for step, new in enumerate(news)])


def test_forced_tokens_take_no_step_of_their_own() -> None:
    shape = Shape(4, 40, 6, 64, caches_prefixes=True, watermark=0.0, late=False)
    new = NewRequest("r0", COMMON[:6], Sampling(grammar=GRAMMARS.texts[0]), Stopping(20, 0, (5,)))
    world = play(shape, [Arrival(new, step=0)], max_steps=20)
    deltas = world.deltas["r0"]
    assert [len(delta.token_ids) for delta in deltas] == [5, 6]
    assert world.scheduler.stats.num_forced_tokens == 11 - 2
    assert deltas[-1].finish is not None
    assert deltas[-1].finish.reason is Reason.END_OF_SEQUENCE


@given(shapes(), bursts())
def test_same_text_where_equal_prompts_arrive_together(shape: Shape, script: list[Arrival]) -> None:
    check_invariants(replace(shape, caches_prefixes=True, wait_for_prefix=True), script)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_equal_prompts_that_arrive_together_are_computed_once(late: bool) -> None:
    """All but the last block, which each computes for itself."""
    shape = Shape(4, 80, 6, 64, caches_prefixes=True, watermark=0.0, late=late)
    news = [NewRequest(f"r{n}", COMMON[:14], Sampling(seed=n), Stopping(6)) for n in range(6)]
    script = [Arrival(new, step=0) for new in news]
    check_invariants(shape, script)
    world = play(shape, script, max_steps=100)
    assert world.num_computed == 14 + 5 * 2 + 6 * 5
    assert world.scheduler.stats.num_prefix_waits == 5


def test_a_script_that_preempts_keeps_every_output() -> None:
    shape = TIGHT
    script = [
        Arrival(
            NewRequest(
                f"r{index}", COMMON[: 2 + index], Sampling(temperature=0.0), Stopping(max_tokens=12)
            ),
            step=0,
        )
        for index in range(6)
    ]
    check_invariants(shape, script)
    world = play(shape, script, max_steps=1000)
    assert world.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize("num_blocks", [14, 40], ids=["blocks", "sequences"])
def test_a_script_of_urgent_requests_keeps_every_output(
    mode: PreemptionMode, num_blocks: int, *, late: bool
) -> None:
    shape = replace(
        TIGHT,
        num_blocks=num_blocks,
        max_num_seqs=3,
        late=late,
        policy=PolicyName.PRIORITY,
        num_host_blocks=60,
        preemption_mode=mode,
    )
    script = [
        Arrival(
            NewRequest(
                f"r{index}",
                COMMON[index : 6 + index + index % 3],
                Sampling(seed=index),
                Stopping(max_tokens=10 if index < 3 else 3),
                priority=-(index // 3),
            ),
            step=2 * (index // 3),
        )
        for index in range(12)
    ]
    check_invariants(shape, script)
    stats = play(shape, script, max_steps=1000).scheduler.stats
    assert stats.num_urgent_preemptions > 2
    assert (stats.num_urgent_swaps > 0) is (mode is not PreemptionMode.RECOMPUTE)


def test_a_request_that_grew_is_not_swapped_out_without_what_its_last_token_sees() -> None:
    """It gives blocks behind a window back for a step that is then thrown away."""
    shape = Shape(
        6,
        23,
        4,
        19,
        caches_prefixes=True,
        watermark=0.0,
        late=True,
        layers=(FULL, FULL, *(AttentionPattern(AttentionType.SLIDING, size) for size in (1, 7))),
        max_skips=0,
        num_host_blocks=5,
    )
    script = [
        Arrival(
            NewRequest(
                f"r{index}",
                COMMON[:11] + (0,),
                Sampling(temperature=0.0),
                Stopping(max_tokens),
                fork_of="r0" if index else None,
            ),
            step=int(index == 2),
        )
        for index, max_tokens in enumerate((6, 1, 2, 1, 1))
    ]
    check_invariants(shape, script)


def test_shared_prompts_hit_the_prefix_cache() -> None:
    shape = Shape(2, 40, 6, 26, caches_prefixes=True, watermark=0.0, late=False)
    script = [
        Arrival(
            NewRequest(f"r{step}", COMMON[:12], Sampling(seed=step), Stopping(max_tokens=4)), step
        )
        for step in range(4)
    ]
    check_invariants(shape, script)
    world = play(shape, script, max_steps=1000)
    assert world.scheduler.stats.num_prefix_hits == 3 * 10


def test_generated_tokens_are_found_as_a_prompt() -> None:
    """Whoever goes on with an answer finds it whole, but for the last token, whose keys and values
    nobody has computed, and the block it lies in."""
    shape = Shape(2, 40, 6, 26, caches_prefixes=True, watermark=0.0, late=False)
    first = NewRequest("first", COMMON[:6], Sampling(temperature=0.0), Stopping(max_tokens=11))
    text = COMMON[:6] + tuple(alone(first, shape.layers))
    again = NewRequest("again", text, Sampling(temperature=0.0), Stopping(max_tokens=2))
    script = [Arrival(first, step=0), Arrival(again, step=20)]
    check_invariants(shape, script)
    world = play(shape, script, max_steps=100)
    assert world.scheduler.stats.num_prefix_hits == 6 + 11 - 1


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_forks_compute_the_prompt_once(late: bool) -> None:
    """All but its last token, of which each samples its own next; without any prefix cache."""
    shape = Shape(4, 40, 6, 64, caches_prefixes=False, watermark=0.0, late=late)
    first = NewRequest("r0", COMMON[:14], Sampling(seed=0), Stopping(max_tokens=6))
    others = [
        replace(first, id=f"r{n}", sampling=Sampling(seed=n), fork_of="r0") for n in (1, 2, 3)
    ]
    script = [Arrival(new, step=0) for new in (first, *others)]
    check_invariants(shape, script)
    world = play(shape, script, max_steps=100)
    assert world.num_computed == 14 + 3 * 1 + 4 * 5
    assert world.scheduler.stats.num_copied_on_device == 3
    assert world.scheduler.stats.num_forked_tokens == 3 * 13


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("caches_prefixes", [False, True], ids=["no prefixes", "prefixes"])
def test_a_request_that_was_swapped_out_computes_nothing_again(
    late: bool, caches_prefixes: bool
) -> None:
    shape = Shape(
        2,
        14,
        6,
        12,
        caches_prefixes=caches_prefixes,
        watermark=0.0,
        late=late,
        num_host_blocks=60,
        preemption_mode=PreemptionMode.SWAP,
    )
    script = [
        Arrival(
            NewRequest(
                f"r{index}", COMMON[index : 4 + 2 * index], Sampling(seed=index), Stopping(12)
            ),
            step=0,
        )
        for index in range(6)
    ]
    check_invariants(shape, script)
    stats = play(shape, script, max_steps=1000).scheduler.stats
    assert stats.num_swaps == stats.num_preemptions > 0
    assert stats.num_wasted_tokens <= (stats.num_swaps if late else 0)
    assert stats.num_copied_in > 0


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("kind", [AttentionType.SLIDING, AttentionType.CHUNKED])
def test_a_request_of_twenty_windows_lives_in_its_worst_case(
    kind: AttentionType, late: bool
) -> None:
    """In a pool that has no block more, and without one preemption."""
    layer = AttentionPattern(kind, 2)
    worst = layer.max_blocks(44, block_size=2, max_chunk_tokens=5)
    assert worst < 44 // 2 // 3
    shape = Shape(2, worst + 1, 1, 5, True, 0.0, late, layers=(layer, layer))
    new = NewRequest("r", COMMON[:20], Sampling(temperature=0.0), Stopping(max_tokens=24))
    world = World(shape)
    world.add(new)
    while world.has_work:
        world.step()
        assert world.cache.usage.active <= worst
    assert world.tokens_of("r") == alone(new, shape.layers)
    assert world.scheduler.stats.num_preemptions == 0
