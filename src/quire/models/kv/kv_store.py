"""The keys and values of all blocks: for each place of the layout one tensor of keys and one of
values, [blocks, block_size, heads, width], shared by one layer of each group; where they are
quantised, their scales beside them. Latent layers keep keys alone.

A slot is a row of the first two dimensions taken as one. Only attention reads and writes here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from quire.cache.layout import Layout
from quire.models.config import KVSize
from quire.models.kv.kv_codec import Codec, Encoded
from quire.models.kv.pages import zeros_on_touch

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where gathered K and V go, kept from use to use, one stretch of memory for each dtype: on a
    CPU fresh pages cost more than the copy itself. The last tensors of it are kept as well, since
    all layers of a step ask for the same."""

    memory: dict[torch.dtype, Tensor] = field(default_factory=dict)
    last: dict[torch.dtype, tuple[Shapes, list[Tensor]]] = field(default_factory=dict)

    def take(self, like: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Tensors of `shapes` on the device of `like`, until the next use of `dtype`."""
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
        """What is too small goes before more is asked for."""
        if dtype not in self.memory or self.memory[dtype].numel() < size:
            self.last.pop(dtype, None)
            self.memory.pop(dtype, None)
            self.memory[dtype] = like.new_empty(size, dtype=dtype)
        return self.memory[dtype]


@dataclass(frozen=True, slots=True)
class KVStore:
    """`places` has each layer's (group, index of its tensors). A place without values is latent:
    its values are the first elements of its keys. `host` has for each of `tensors` the same of the
    host's blocks."""

    block_size: int
    places: Mapping[int, tuple[int, int]]
    codec: Codec
    keys: tuple[Encoded, ...]
    values: tuple[Encoded | None, ...]
    host: tuple[Tensor, ...] = ()

    @property
    def tensors(self) -> list[Tensor]:
        kept = [part for encoded in self.keys + self.values if encoded for part in encoded]
        return [tensor for tensor in kept if tensor is not None]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def group(self, layer: int) -> int:
        return self.places[layer][0]

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put token i's `keys[i]` and `values[i]` ([heads, width]) into `slots[i]`."""
        _, place = self.places[layer]
        for kept, new in ((self.keys[place], keys), (self.values[place], values)):
            if kept is None:
                continue
            elements, scales = self.codec.encode(new)
            kept.elements.flatten(0, 1).index_copy_(0, slots, elements)
            if kept.scales is not None and scales is not None:
                kept.scales.flatten(0, 1).index_copy_(0, slots, scales)

    def read(self, layer: int, slots: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor]:
        """The K and V of `slots`, each [len(slots), heads, width], until the workspace's next use.
        Of a latent layer both are the same tensor, as wide as the keys."""
        _, place = self.places[layer]
        keys, values = self.keys[place], self.values[place]
        kept = [keys] if values is None else [keys, values]
        shapes = [(len(slots), *each.elements.shape[2:]) for each in kept]
        places = workspace.take(keys.elements, self.codec.dtype, *shapes)
        for each, out in zip(kept, places, strict=True):
            self._gather(each, slots, workspace, out)
        return places[0], places[-1]

    def _gather(self, kept: Encoded, slots: Tensor, workspace: Workspace, out: Tensor) -> None:
        elements = kept.elements.flatten(0, 1)
        if kept.scales is None:
            torch.index_select(elements, 0, slots, out=out)
            return
        (numbers,) = workspace.take(elements, elements.dtype, tuple(out.shape))
        torch.index_select(elements, 0, slots, out=numbers)
        scales = kept.scales.flatten(0, 1).index_select(0, slots)
        self.codec.decode(Encoded(numbers, scales), out)


def build_kv_store(layout: Layout, size: KVSize, *, codec: Codec, device: torch.device) -> KVStore:
    """Zeroed memory; `layout` counts the bytes of the same codec's elements and scales. The host's
    is pinned if there is another device to copy it to."""

    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if device.type == "cpu":
            return _untouched(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=device)

    def on_host(tensor: Tensor) -> Tensor:
        shape = (size.num_host_blocks, *tensor.shape[1:])
        if device.type == "cpu":
            return _untouched(shape, tensor.dtype)
        return torch.zeros(shape, dtype=tensor.dtype, pin_memory=True)

    def encoded(num_heads: int, width: int) -> Encoded:
        shape = (size.num_blocks, size.block_size, num_heads)
        scales = allocate(shape, torch.bfloat16) if codec.is_quantised else None
        return Encoded(allocate((*shape, width), codec.stored), scales)

    keys = tuple(
        encoded(token_kv.num_kv_heads, token_kv.head_size) for token_kv in layout.token_kvs
    )
    values = tuple(
        None if token_kv.is_latent else encoded(token_kv.num_kv_heads, token_kv.v_head_size)
        for token_kv in layout.token_kvs
    )
    store = KVStore(size.block_size, layout.tensor_indices(), codec, keys, values)
    if not size.num_host_blocks:
        return store
    return replace(store, host=tuple(on_host(tensor) for tensor in store.tensors))


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory when they are written. `torch.zeros` writes them all at once:
    gigabytes of memory and seconds of start-up for blocks that may never be used."""
    return zeros_on_touch(prod(shape) * dtype.itemsize).view(dtype).view(shape)
