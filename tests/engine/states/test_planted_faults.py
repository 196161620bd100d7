"""Faults planted on purpose in the states of recurrent layers, each of which the invariants must
see."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.cache.admission import BlockFinder, ComputedBlocks
from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_pool import AccountsError
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain, Content
from quire.cache.kv_cache import KVCache
from quire.cache.spec import FULL
from quire.cache.states.host_states import HostStates
from quire.cache.states.state_cache import StateCache
from quire.cache.states.state_use import NULL_STATE, StateUse
from quire.models.recurrent.pieces import Pieces
from quire.models.toy import ToyModel, Words
from quire.scheduler.cost import PreemptionMode
from tests.engine.invariants import arrivals, bursts, check_invariants, recurrent_shapes
from tests.engine.toy_engine import Arrival, Shape


def as_drawn(shape: Shape) -> Shape:
    return shape


def swapping(shape: Shape) -> Shape:
    """A shape of few blocks, whose requests are swapped to a host of a single state."""
    return replace(
        shape,
        block_size=2,
        num_blocks=20,
        max_num_seqs=4,
        max_num_batched_tokens=12,
        layers=(None, FULL),
        num_host_blocks=60,
        num_states=7,
        num_host_states=1,
        preemption_mode=PreemptionMode.SWAP,
    )


def search(max_examples: int, to_shape: Callable[[Shape], Shape]) -> None:
    """The invariant over a fixed set of cases, stopping at the first that breaks it."""

    @settings(max_examples=max_examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(recurrent_shapes(), st.one_of(arrivals(), bursts()))
    def invariant(shape: Shape, script: list[Arrival]) -> None:
        check_invariants(replace(to_shape(shape), caches_prefixes=True), script)

    invariant()


def takes_a_snapshot_one_token_late(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = StateCache.plan

    def late(cache: StateCache, table: BlockTable, start: int, end: int) -> StateUse:
        use = plan(cache, table, start, end)
        moved = [each._replace(end=min(each.end + 1, end)) for each in use.writes]
        return use._replace(writes=tuple(moved))

    monkeypatch.setattr(StateCache, "plan", late)


def keeps_states_in_fewer_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As bfloat16 does, where the state is computed in float32."""
    carried = ToyModel._carried

    def rounded(model: ToyModel, layer: int, hidden: Words, pieces: Pieces) -> Words:
        after = carried(model, layer, hidden, pieces)
        model._states &= np.uint64(0xFFFFFFFFFFFF0000)
        return after

    monkeypatch.setattr(ToyModel, "_carried", rounded)


def writes_a_snapshot_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes on where it found a snapshot."""
    plan = StateCache.plan

    def in_place(cache: StateCache, table: BlockTable, start: int, end: int) -> StateUse:
        use = plan(cache, table, start, end)
        if use.read == NULL_STATE or len(use.writes) > 1:
            return use
        states = table.states
        assert states is not None
        if states.current != use.read:
            write = use.writes[0]
            states.live, states.current = use.read, use.read
            states.kept = [each._replace(state_id=write.state_id) for each in states.kept]
            return use._replace(writes=(write._replace(state_id=use.read),))
        return use

    monkeypatch.setattr(StateCache, "plan", in_place)


def hits_on_keys_and_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(
        finder: BlockFinder, _: StateCache, chain: Chain, max_blocks: int, *, use_host: bool
    ) -> ComputedBlocks:
        return finder.prefix(chain, max_blocks, use_host=use_host)

    monkeypatch.setattr(BlockFinder, "prefix_with_state", trusting)


def goes_on_from_an_older_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that are found say how far, and the state is one of before."""
    find = BlockFinder.prefix_with_state

    def hasty(
        finder: BlockFinder, states: StateCache, chain: Chain, max_blocks: int, *, use_host: bool
    ) -> ComputedBlocks:
        right = find(finder, states, chain, max_blocks, use_host=use_host)
        older = states.find(chain, right.num_cached_blocks - 1)
        if right.state is None or older is None:
            return right
        return right._replace(state=right.state._replace(state_id=older.state_id))

    monkeypatch.setattr(BlockFinder, "prefix_with_state", hasty)


def gives_states_back_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is read by a step that another request writes in."""

    def careless(cache: StateCache, states: object, end: int) -> None:
        current, live = getattr(states, "current", 0), getattr(states, "live", 0)
        if current not in (NULL_STATE, live):
            cache._pool.release(current)

    monkeypatch.setattr(StateCache, "_pass", careless)


def swaps_a_state_one_token_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own one, which a step ahead has moved on."""
    swap_out = StateCache.swap_out

    def late(cache: StateCache, table: BlockTable, num_computed: int) -> bool:
        states = table.states
        if states is None or states.position != num_computed + 1:
            return swap_out(cache, table, num_computed)
        return swap_out(cache, table, states.position)

    def point(cache: StateCache, table: BlockTable, num_computed: int) -> int:
        return num_computed

    monkeypatch.setattr(StateCache, "swap_out", late)
    monkeypatch.setattr(StateCache, "swap_point", point)


def evicts_the_state_of_a_swapped_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is copied to where that state is."""
    put = HostStates.put

    def greedy(
        host: HostStates, digest: bytes, content: Content, num_blocks: int, kind: int
    ) -> int | None:
        if host._free or host._cached or not host._swapped:
            return put(host, digest, content, num_blocks, kind)
        return min(host._swapped)

    monkeypatch.setattr(HostStates, "put", greedy)


def comes_back_before_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a step are done in another order than that of the decisions."""
    take = KVCache.take_block_copies

    def hasty(cache: KVCache) -> tuple[BlockCopy, ...]:
        return tuple(sorted(take(cache), key=lambda copy: copy.kind is CopyKind.STATE_OUT))

    monkeypatch.setattr(KVCache, "take_block_copies", hasty)


@pytest.mark.parametrize(
    ("plant", "to_shape"),
    [
        (swaps_a_state_one_token_late, swapping),
        (evicts_the_state_of_a_swapped_request, swapping),
        (comes_back_before_it_has_left, swapping),
        (takes_a_snapshot_one_token_late, as_drawn),
        (keeps_states_in_fewer_bits, as_drawn),
        (writes_a_snapshot_that_others_read, as_drawn),
        (hits_on_keys_and_values_alone, as_drawn),
        (goes_on_from_an_older_snapshot, as_drawn),
        (gives_states_back_too_early, as_drawn),
    ],
)
def test_planted_fault_of_states_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    to_shape: Callable[[Shape], Shape],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError, ValueError, IndexError, KeyError)):
        search(4000, to_shape)
