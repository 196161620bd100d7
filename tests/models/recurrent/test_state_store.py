"""A state is one range of memory, whose parts are the layers' states."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.spec import StateSpec
from quire.models.config import RecurrentLayer
from quire.models.kv.block_copier import BlockCopier
from quire.models.kv.staged_queue import StagedQueue, Streams
from quire.models.kv.streams import HostStream
from quire.models.recurrent.state_copier import RowGatherer, StateCopier, build_state_copier
from quire.models.recurrent.state_rows import StateRows
from quire.models.recurrent.state_store import StateStore, build_state_store

CPU = torch.device("cpu")
SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1)
SPECS = st.lists(SHAPES.map(lambda shapes: StateSpec(tuple(shapes))), min_size=1, max_size=4)


@given(specs=SPECS, num_states=st.integers(2, 5))
def test_parts_share_nothing_and_cover_the_row(specs: list[StateSpec], num_states: int) -> None:
    layers = [RecurrentLayer(2 * index, spec) for index, spec in enumerate(specs)]
    store = build_state_store(layers, num_states, device=CPU)
    assert store.num_states == num_states
    assert store.state_bytes == sum(spec.num_bytes for spec in specs)
    assert store.rows.is_contiguous()
    for layer in layers:
        for part, shape in zip(store.parts[layer.index], layer.state.shapes, strict=True):
            assert part.shape == (num_states, *shape)
            part[1:] += 1
    assert (store.rows[1:] == 1).all()
    assert not store.rows[0].any()


def staged_copier(store: StateStore) -> StateCopier:
    """A copier as that of a GPU, on streams whose work is done at once."""
    assert store.host is not None
    staging = torch.full((2, store.rows.shape[1]), -1.0)
    streams = Streams(HostStream(), HostStream(), HostStream())
    queue = StagedQueue(RowGatherer(store.rows, staging), store.host, staging, streams)
    return StateCopier(BlockCopier(queue))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CopyKind.STATE_OUT, CopyKind.STATE_IN]),
            st.integers(1, 4),
            st.integers(0, 2),
        ),
        max_size=8,
    ),
    st.sampled_from([3, 1 << 18]),
    st.booleans(),
)
def test_states_are_copied_in_order(
    moves: list[tuple[CopyKind, int, int]], num_elements: int, is_staged: bool
) -> None:
    """Large ones as small ones, and through staging memory, as on a GPU."""
    layers = [RecurrentLayer(0, StateSpec(((num_elements,),)))]
    store = build_state_store(layers, 5, device=CPU, num_host_states=3)
    assert store.host is not None and store.host.shape == (3, num_elements)
    for state in range(5):
        store.rows[state] = state
    expected, there = [0.0, 1.0, 2.0, 3.0, 4.0], [0.0] * 3
    copies = []
    for kind, state, host in moves:
        if kind is CopyKind.STATE_OUT:
            there[host] = expected[state]
            copies.append(BlockCopy(kind, state, host))
        else:
            expected[state] = there[host]
            copies.append(BlockCopy(kind, host, state))
    copier = staged_copier(store) if is_staged else build_state_copier(store, CPU)
    assert copier is not None
    copier.copy_states([*copies, BlockCopy(CopyKind.OUT, 1, 1)])
    assert [set(row.tolist()) for row in store.rows] == [{value} for value in expected]
    assert copier.take_copy_time().num_states == len(moves)


def test_without_states_on_the_host_nothing_is_copied() -> None:
    layers = [RecurrentLayer(0, StateSpec(((2, 3),)))]
    assert build_state_copier(build_state_store(layers, 2, device=CPU), CPU) is None


@pytest.mark.parametrize("num_states", [0, 1])
def test_there_is_room_for_a_state_beside_the_null_state(num_states: int) -> None:
    layers = [RecurrentLayer(0, StateSpec(((2, 3),)))]
    with pytest.raises(ValueError, match=f"{num_states} states: .* needs 2 at least"):
        build_state_store(layers, num_states, device=CPU)


@given(specs=SPECS, num_states=st.integers(2, 5), data=st.data())
def test_states_become_rows_and_states_again(
    specs: list[StateSpec], num_states: int, data: st.DataObject
) -> None:
    layers = [RecurrentLayer(2 * index, spec) for index, spec in enumerate(specs)]
    store, other = (build_state_store(layers, num_states, device=CPU) for _ in range(2))
    store.rows[1:].normal_()
    kept = store.rows.clone()
    chosen = data.draw(st.lists(st.integers(1, num_states - 1), min_size=1, unique=True))
    rows = StateRows(store).new_rows(len(chosen) + 1)
    assert rows.shape[1] == StateRows(store).row_bytes == store.state_bytes
    assert StateRows(store).read(chosen, rows).is_reached
    assert torch.equal(store.rows, kept)
    StateRows(other).write(rows, chosen[::-1])
    assert torch.equal(other.rows[chosen[::-1]], kept[chosen])
    assert not other.rows[[each for each in range(num_states) if each not in chosen]].any()
