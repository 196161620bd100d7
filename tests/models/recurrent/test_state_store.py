"""A state is one range of memory, whose parts are the layers' states."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.spec import StateSpec
from quire.models.config import RecurrentLayer
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
