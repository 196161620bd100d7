"""The keys and values of all blocks: for each cache tensor of the layout one tensor of keys and one
of values, [num_blocks, block_size, kv heads, head_size], shared by one layer of each group; where
they are quantised, their scales beside them. Latent layers keep keys alone.

Where several narrower layers lie in a cache tensor, they see the same memory as [num_blocks *
num_parts, block_size, kv heads, head_size] of their own, by block tables of their own.

A slot is a row of the first two dimensions taken as one. Only attention reads and writes here.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from quire.cache.layout import CacheTensor, LayerForm, Layout
from quire.models.config import KVSize
from quire.models.kv.huge_pages import HUGE_PAGE_BYTES, page_offsets, zeros_on_touch
from quire.models.kv.kv_codec import Codec, EncodedKV
from quire.models.kv.pinned import CUDAPages, pinned_zeros
from quire.models.kv.rows import row_offsets, row_views

LEAST_PAGES = 16
"""Tensors of so many huge pages begin at different places of theirs: to others the rest of a page
would be much."""

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class GatherWorkspace:
    """Memory for gathered K and V, reused from call to call, one tensor for each dtype.

    On a CPU fresh pages cost more than the copy itself. The views that were taken last are kept
    too, since all layers of a step take the same ones.
    """

    memory: dict[torch.dtype, Tensor] = field(default_factory=dict)
    last: dict[torch.dtype, tuple[Shapes, list[Tensor]]] = field(default_factory=dict)

    def take(self, like: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Return tensors of `shapes` on the device of `like`, valid until `dtype` is taken next."""
        known = self.last.get(dtype)
        if known is not None and known[0] == shapes:
            return known[1]
        sizes = [prod(shape) for shape in shapes]
        memory = self._grown(like, dtype, sum(sizes))
        parts = memory[: sum(sizes)].split_with_sizes(sizes)
        tensors = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self.last[dtype] = shapes, tensors
        return tensors

    def _grown(self, like: Tensor, dtype: torch.dtype, size: int) -> Tensor:
        """Return memory of at least `size` elements; a smaller one is freed before."""
        if dtype not in self.memory or self.memory[dtype].numel() < size:
            self.last.pop(dtype, None)
            self.memory.pop(dtype, None)
            self.memory[dtype] = like.new_empty(size, dtype=dtype)
        return self.memory[dtype]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KVStore:
    """The tensors that hold K and V on the device, and those for blocks swapped out to the host.

    layer_tensors: for each layer the index of its block table in a step, and that of its keys and
        values.
    keys, values: for each cache tensor in turn, as the layers of each of its forms see it. A layer
        without values is latent: its values are the first elements of its keys.
    tensors: all memory on the device, once, [num_blocks, ...].
    host: uint8 [num_host_blocks, row bytes], a row for each block of the host as `rows` says, or
        None if it has none.
    """

    block_size: int
    layer_tensors: Mapping[int, tuple[int, int]]
    codec: Codec
    keys: tuple[EncodedKV, ...]
    values: tuple[EncodedKV | None, ...]
    tensors: tuple[Tensor, ...]
    host: Tensor | None = None

    @property
    def host_tensors(self) -> list[Tensor]:
        """For each of `tensors` one of the same shape but the host's number of blocks; none if the
        host has none."""
        return [] if self.host is None else row_views(self.host, self.tensors)

    @property
    def row_bytes(self) -> int:
        return row_offsets(self.tensors)[-1]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def table(self, layer: int) -> int:
        """Return the index of a layer's slots and block table in a step."""
        return self.layer_tensors[layer][0]

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store token i's `keys[i]` and `values[i]`, [kv heads, head_size], in slot `slots[i]`."""
        _, index = self.layer_tensors[layer]
        for kept, new in ((self.keys[index], keys), (self.values[index], values)):
            if kept is None:
                continue
            elements, scales = self.codec.encode(new)
            kept.elements.flatten(0, 1).index_copy_(0, slots, elements)
            if kept.scales is not None and scales is not None:
                kept.scales.flatten(0, 1).index_copy_(0, slots, scales)

    def read(self, layer: int, slots: Tensor, workspace: GatherWorkspace) -> tuple[Tensor, Tensor]:
        """Return the K and V of `slots`, each [len(slots), kv heads, size], in the model's dtype.

        They are valid until the next use of the workspace. For a latent layer both are the same
        tensor, the keys.
        """
        _, index = self.layer_tensors[layer]
        keys, values = self.keys[index], self.values[index]
        kept = [keys] if values is None else [keys, values]
        shapes = [(len(slots), *each.elements.shape[2:]) for each in kept]
        outs = workspace.take(keys.elements, self.codec.dtype, *shapes)
        for each, out in zip(kept, outs, strict=True):
            self._gather(each, slots, workspace, out)
        return outs[0], outs[-1]

    def _gather(
        self, kept: EncodedKV, slots: Tensor, workspace: GatherWorkspace, out: Tensor
    ) -> None:
        elements = kept.elements.flatten(0, 1)
        if kept.scales is None:
            torch.index_select(elements, 0, slots, out=out)
            return
        (numbers,) = workspace.take(elements, elements.dtype, tuple(out.shape))
        torch.index_select(elements, 0, slots, out=numbers)
        scales = kept.scales.flatten(0, 1).index_select(0, slots)
        self.codec.decode(EncodedKV(numbers, scales), out)


def build_kv_store(
    layout: Layout, size: KVSize, *, codec: Codec, device: torch.device, huge_pages: bool = True
) -> KVStore:
    """Allocate zeroed tensors for `size`, on `device` and on the host.

    `layout` counts the bytes of the same codec's elements and scales. The host's memory is pinned
    if the device is another one; memory of the host may lie on huge pages. Raises TooLittleMemory
    where it cannot be pinned.
    """

    offsets = page_offsets()

    def allocate(shape: Shape, dtype: torch.dtype) -> Tensor:
        if device.type == "cpu":
            return _zeros_on_touch(shape, dtype, huge_pages, next(offsets))
        return torch.zeros(shape, dtype=dtype, device=device)

    keys = _Parts(size, codec, allocate)
    values = _Parts(size, codec, allocate)
    for tensor in layout.tensors:
        keys.add(tensor, [form.token_kv.head_size for form in tensor.forms])
        values.add(tensor, [form.token_kv.v_head_size for form in tensor.forms])
    num_forms = len(layout.tensors[0].forms) if layout.tensors else 1
    layer_tensors = {
        layer: (place.table, place.tensor * num_forms + place.form)
        for layer, place in layout.layer_places().items()
    }
    store = KVStore(
        size.block_size,
        layer_tensors,
        codec,
        tuple(each for each in keys.views if each is not None),
        tuple(values.views),
        (*keys.memory, *values.memory),
    )
    if not size.num_host_blocks:
        return store
    shape = (size.num_host_blocks, store.row_bytes)
    if device.type == "cpu":
        return replace(store, host=_zeros_on_touch(shape, torch.uint8, huge_pages))
    memory = pinned_zeros(prod(shape), CUDAPages(), huge_pages=huge_pages)
    store = replace(store, host=memory.zeros.view(shape))
    weakref.finalize(store, memory.unpin)
    return store


@dataclass(frozen=True, slots=True)
class _Parts:
    """Keys or values of all cache tensors, as they are allocated.

    views: for each tensor in turn, its memory as each form sees it.
    memory: what is allocated, [num_blocks, ...].
    """

    size: KVSize
    codec: Codec
    allocate: Callable[[Shape, torch.dtype], Tensor]
    views: list[EncodedKV | None] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)

    def add(self, tensor: CacheTensor, head_sizes: Sequence[int]) -> None:
        """Allocate a cache tensor whose forms have vectors of `head_sizes`; nothing where these
        are 0, as the values of latent layers."""
        if not any(head_sizes):
            self.views.extend([None] * len(tensor.forms))
            return
        heads = [self._shape(form) for form in tensor.forms]
        rows = [(*shape, size) for shape, size in zip(heads, head_sizes, strict=True)]
        elements = self._views(rows, self.codec.stored, is_shared=True)
        scales: Sequence[Tensor | None] = [None] * len(rows)
        if self.codec.is_quantised:
            scales = self._views(heads, torch.bfloat16, is_shared=tensor.shares_scales)
        self.views.extend(map(EncodedKV, elements, scales))

    def _shape(self, form: LayerForm) -> Shape:
        num_blocks = self.size.num_blocks * form.num_parts
        return num_blocks, self.size.block_size, form.token_kv.num_kv_heads

    def _views(
        self, shapes: Sequence[Shape], dtype: torch.dtype, *, is_shared: bool
    ) -> list[Tensor]:
        """Return zeros of these shapes, which are the same memory where they are shared."""
        first = self.allocate(shapes[0], dtype)
        views = [first]
        for shape in shapes[1:]:
            views.append(first.view(shape) if is_shared else self.allocate(shape, dtype))
        for own in views[:1] if is_shared else views:
            num_blocks = self.size.num_blocks
            self.memory.append(own if len(own) == num_blocks else own.view(num_blocks, -1))
        return views


def _zeros_on_touch(
    shape: tuple[int, ...], dtype: torch.dtype, huge_pages: bool, offset: int = 0
) -> Tensor:
    """Return zeros that take memory only when they are written.

    `torch.zeros` writes all of them at once: gigabytes of memory and seconds of start-up for blocks
    that may never be used.
    """
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes < LEAST_PAGES * HUGE_PAGE_BYTES:
        offset = 0
    zeros = zeros_on_touch(num_bytes, huge_pages=huge_pages, offset=offset)
    return zeros.view(dtype).view(shape)
