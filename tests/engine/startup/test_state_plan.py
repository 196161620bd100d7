"""The number of states that a start chooses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sizing import TooLittleMemory
from quire.cache.states.policy import SnapshotKind, SnapshotPlace, SnapshotPolicy
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig
from quire.engine.startup.state_plan import (
    LEAST_STATES,
    StateDemand,
    snapshot_policy,
)
from quire.models.optimizations import Optimization


@given(
    st.integers(1, 1 << 30),
    st.integers(1, 512),
    st.booleans(),
    st.integers(-(1 << 40), 1 << 40),
)
def test_states_take_half_of_what_is_left_at_most(
    state_bytes: int, max_num_seqs: int, keeps_prefixes: bool, available: int
) -> None:
    demand = StateDemand(state_bytes, max_num_seqs, None, keeps_prefixes)
    num_states = demand.num_states(available)
    assert num_states >= LEAST_STATES
    assert num_states == LEAST_STATES or num_states * state_bytes <= available / 2
    assert demand.num_states(available + 1) >= num_states


def test_each_request_may_have_a_snapshot_and_a_tenth_is_for_others() -> None:
    assert StateDemand(1, 4, None, True).num_states(1000) == 1 + 2 * 4 + 100
    assert StateDemand(1, 4, None, False).num_states(1000) == 1 + 4
    assert StateDemand(0, 4, None, True).num_states(1000) == 0


def test_a_given_number_is_taken_or_refused_with_the_numbers() -> None:
    assert StateDemand(1 << 20, 4, 9, True).num_states(9 << 20) == 9
    with pytest.raises(TooLittleMemory, match=r"take 9\.0 MiB, but 8\.0 MiB are available: pass"):
        StateDemand(1 << 20, 4, 9, True).num_states(8 << 20)


def test_snapshots_are_left_out_where_they_are_disabled() -> None:
    def policy(*disabled: Optimization) -> SnapshotPolicy:
        memory = MemoryConfig(state_snapshot_interval=64)
        return snapshot_policy(
            EngineConfig(ModelConfig("m", disable_optimizations=disabled), memory)
        )

    planned, last = Optimization.PLANNED_SNAPSHOTS, Optimization.LAST_SNAPSHOTS
    ends = {place.end for place in policy(planned).wanted(1000, 0, 336, block_size=16)}
    others = {place.end for place in policy(last).wanted(1000, 0, 336, block_size=16)}
    interval = {*range(64, 1000, 64)}
    assert policy(planned, last).wanted(1000, 0, 336, block_size=16) == [
        SnapshotPlace(end, SnapshotKind.INTERVAL) for end in sorted(interval)
    ]
    assert ends == {*interval, 992} and others - ends >= {336, 976, 928, 864}
    everything = {place.end for place in policy().wanted(1000, 0, 336, block_size=16)}
    assert everything == ends | others and 992 not in others
    assert policy().outputs and policy(planned).outputs and not policy(last).outputs
