"""What the cost model learns from steps, and what it then prefers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_copies import CopyTime
from quire.cache.swapping import RecomputeCost
from quire.scheduler.cost import CostModel, PreemptionMode
from tests.rounding import compounded

BLOCK = RecomputeCost(num_blocks=1, num_tokens=16)
NUM_ROUNDINGS = 24
"""Of a sum over the five steps of `learnt`: three for each, and nine on the way to a quotient."""
SLOPE_ERROR = compounded(NUM_ROUNDINGS) * 2 * (500 * 6 + 500 * 500 * 0.01) / 30_000
"""Of the difference of two means of tokens times seconds, 500 x 6 at most, over that of two means
of tokens squared, which is more than 30,000 and is multiplied by a slope of 0.01 at most."""


def learnt(token_s: float, block_s: float, *, base_s: float = 0.01) -> CostModel:
    cost = CostModel(PreemptionMode.AUTO)
    for num_tokens in (10, 500, 40, 300, 200):
        cost.observe_step(num_tokens, base_s + num_tokens * token_s)
        cost.observe_copies(CopyTime(num_tokens, num_tokens * block_s))
    return cost


@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-1), st.floats(0, 1))
def test_the_cost_of_one_more_token_is_told_from_that_of_a_step(
    token_s: float, block_s: float, base_s: float
) -> None:
    cost = learnt(token_s, block_s, base_s=base_s)
    assert cost.token_s == pytest.approx(token_s, rel=0, abs=SLOPE_ERROR)
    assert cost.block_s == pytest.approx(block_s, rel=compounded(NUM_ROUNDINGS))


def test_steps_of_one_size_share_out_their_time() -> None:
    cost = CostModel(PreemptionMode.AUTO)
    for _ in range(5):
        cost.observe_step(64, 0.1)
    assert cost.token_s == pytest.approx(0.1 / 64, rel=compounded(NUM_ROUNDINGS))


def test_steps_of_nearly_one_size_tell_no_slope_through_their_noise() -> None:
    cost = CostModel(PreemptionMode.AUTO)
    for num_tokens, seconds in ((63, 0.1), (64, 0.1), (65, 0.2)) * 4:
        cost.observe_step(num_tokens, seconds)
    assert cost.token_s == pytest.approx(1.6 / (12 * 64), rel=0.05)
    assert cost.step_s is None


def test_one_odd_sight_among_many_is_not_believed() -> None:
    cost = CostModel(PreemptionMode.AUTO)
    for _ in range(100):
        cost.observe_copies(CopyTime(1, 1e-3))
    cost.observe_copies(CopyTime(1, 3e-3))
    assert cost.block_s == pytest.approx(1e-3, rel=0.1)


def test_old_speeds_are_forgotten() -> None:
    cost = learnt(1.0, 1.0)
    for index in range(900):
        cost.observe_step(10 + index % 50, (10 + index % 50) * 1e-3)
        cost.observe_copies(CopyTime(1, 1e-3))
    assert cost.token_s == pytest.approx(1e-3, rel=0.05)
    assert cost.block_s == pytest.approx(1e-3, rel=0.05)


@given(st.floats(1e-5, 1e-2), st.floats(1e-5, 1.0), st.integers(1, 50), st.integers(0, 800))
def test_a_preempted_request_goes_the_cheaper_way(
    token_s: float, block_s: float, num_blocks: int, num_tokens: int
) -> None:
    cost = learnt(token_s, block_s)
    assert cost.token_s is not None and cost.block_s is not None
    out_and_in, again = 2 * num_blocks * cost.block_s, num_tokens * cost.token_s
    assert cost.prefers_swap(RecomputeCost(num_blocks, num_tokens)) == (out_and_in < again)


@given(st.floats(1e-5, 1.0), st.integers(0, 50), st.integers(0, 800))
def test_a_state_costs_what_its_copies_took(
    state_s: float, num_blocks: int, num_tokens: int
) -> None:
    """However many blocks go with it, out and in again."""
    cost, own = learnt(1e-3, 1e-4), RecomputeCost(num_blocks, num_tokens, num_states=1)
    assert cost.prefers_swap(own) and cost.least_offload(0.5) == 0, "one is tried"
    cost.observe_copies(CopyTime(num_states=3, state_copy_s=3 * state_s))
    assert cost.token_s is not None and cost.block_s is not None and cost.state_s is not None
    there = num_blocks * cost.block_s + cost.state_s
    assert cost.prefers_swap(own) == (
        2 * num_blocks * cost.block_s + 2 * cost.state_s < num_tokens * cost.token_s
    )
    assert cost.prefers_host(own, is_resumed=False) == (there < num_tokens * cost.token_s)
    least = cost.least_offload(0.5)
    assert (least - 1) * cost.token_s < 3 * cost.state_s <= least * cost.token_s * (1 + 1e-9)


def test_what_was_never_measured_is_tried() -> None:
    cost = CostModel(PreemptionMode.AUTO)
    assert cost.prefers_swap(BLOCK) and cost.prefers_offload(BLOCK, 0.0)
    assert cost.prefers_host(BLOCK, is_resumed=True)


def test_a_forced_mode_speaks_of_preempted_requests_alone() -> None:
    for mode in (PreemptionMode.SWAP, PreemptionMode.RECOMPUTE):
        cost = CostModel(mode)
        cost.observe_step(100, 1.0)
        cost.observe_copies(CopyTime(1, 10.0))
        assert cost.prefers_swap(BLOCK) == (mode is PreemptionMode.SWAP)
        assert cost.prefers_host(BLOCK, is_resumed=True) == (mode is PreemptionMode.SWAP)
        assert not cost.prefers_host(BLOCK, is_resumed=False)


def test_offloading_is_for_what_is_asked_for_again() -> None:
    """A block's tokens take 16 ms to compute; out and in again takes 8."""
    cost = learnt(1e-3, 4e-3)
    assert not cost.prefers_offload(BLOCK, hit_rate=0.0)
    assert not cost.prefers_offload(BLOCK, hit_rate=0.2)
    assert cost.prefers_offload(BLOCK, hit_rate=0.5)
    assert not learnt(1e-3, 1e-3).prefers_offload(BLOCK, hit_rate=0.0), "it may be a little"
    assert learnt(1e-3, 1e-5).prefers_offload(BLOCK, hit_rate=0.0), "it costs next to nothing"
