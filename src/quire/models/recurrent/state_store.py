"""The states of all recurrent layers: a row for each state, with the parts of its layers one after
another, so that a state is one range of memory.

row        layer 0                    layer 1                   layer 4
state 0    0 0 0 0   0 0 0 0 0 0      0 0 0 0  0 0 0 0 0 0      ...       the null state
state 1    rows of   matrix of
           a tail    each head
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from quire.cache.spec import STATE_ELEMENT_BYTES
from quire.models.config import RecurrentLayer
from quire.models.kv.huge_pages import zeros_on_touch
from quire.models.kv.pinned import CUDAPages, pinned_zeros


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateStore:
    """The states of a model's recurrent layers, in float32.

    rows: [num_states, elements of all layers]. Row 0 is the null state, and stays zero.
    parts: by the index of the layer, the parts of its states as views of `rows`, each
        [num_states, *shape] for a shape of the layer's `StateSpec`.
    host: [num_host_states, elements of all layers] in host memory, None without any.
    """

    rows: Tensor
    parts: Mapping[int, tuple[Tensor, ...]]
    host: Tensor | None = None

    @property
    def num_states(self) -> int:
        return len(self.rows)

    @property
    def state_bytes(self) -> int:
        return self.rows.shape[1] * STATE_ELEMENT_BYTES

    @property
    def form(self) -> str:
        """The dtype of states, and the shapes of their parts by layer."""
        shapes = {
            index: [tuple(part.shape[1:]) for part in parts] for index, parts in self.parts.items()
        }
        return f"{self.rows.dtype} {shapes}"


def build_state_store(
    layers: Sequence[RecurrentLayer],
    num_states: int,
    *,
    device: torch.device,
    huge_pages: bool = True,
    num_host_states: int = 0,
) -> StateStore:
    """Allocate `num_states` zeroed states on `device`, and others on the host; on a CPU they take
    memory when they are first written. The host's memory is pinned if the device is another one.
    Raises ValueError without room for the null state and another one, and TooLittleMemory where
    memory cannot be pinned."""
    if num_states < 2:
        raise ValueError(f"{num_states} states: a model with recurrent layers needs 2 at least")
    num_elements = sum(layer.state.num_elements for layer in layers)
    row_bytes = num_elements * STATE_ELEMENT_BYTES
    host_bytes = num_host_states * row_bytes
    if device.type == "cpu":
        rows = _rows(zeros_on_touch(num_states * row_bytes, huge_pages=huge_pages), num_states)
        store = StateStore(rows, _views(rows, layers))
        if not num_host_states:
            return store
        host = zeros_on_touch(host_bytes, huge_pages=huge_pages)
        return replace(store, host=_rows(host, num_host_states))
    rows = torch.zeros(num_states, num_elements, device=device)
    store = StateStore(rows, _views(rows, layers))
    if not num_host_states:
        return store
    pinned = pinned_zeros(host_bytes, CUDAPages(), huge_pages=huge_pages)
    store = replace(store, host=_rows(pinned.zeros, num_host_states))
    weakref.finalize(store, pinned.unpin)
    return store


def _rows(memory: Tensor, num_rows: int) -> Tensor:
    """Return bytes as rows of float32."""
    return memory.view(torch.float32).view(num_rows, -1)


def _views(rows: Tensor, layers: Sequence[RecurrentLayer]) -> dict[int, tuple[Tensor, ...]]:
    parts, first = {}, 0
    for layer in layers:
        views = []
        for shape in layer.state.shapes:
            end = first + prod(shape)
            views.append(torch.unflatten(rows[:, first:end], 1, shape))
            first = end
        parts[layer.index] = tuple(views)
    return parts
