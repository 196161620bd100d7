"""A state is one range of memory, whose parts are the layers' states."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import StateSpec
from quire.models.config import RecurrentLayer
from quire.models.recurrent.state_rows import StateRows
from quire.models.recurrent.state_store import build_state_store

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
