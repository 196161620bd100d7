"""The keys and values of all blocks: for each place of the layout two tensors, [blocks, block_size,
heads, width], shared by one layer of each group.

A slot is a row of the first two dimensions taken as one. Only attention reads and writes here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from quire.cache.layout import Layout

CACHE_LINE_BYTES = 64


@dataclass(slots=True)
class Workspace:
    """Where gathered K and V go, kept from use to use: on a CPU fresh pages cost more than the
    copy itself."""

    memory: Tensor | None = None

    def pair(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Two tensors of `shape`, as one [2, *shape]."""
        size = 2 * prod(shape)
        if self.memory is None or self.memory.numel() < size:
            self.memory = like.new_empty(size)
        return self.memory[:size].view(2, *shape)


@dataclass(frozen=True, slots=True)
class KVStore:
    """`places` has each layer's (group, index of its tensors)."""

    block_size: int
    places: Mapping[int, tuple[int, int]]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def group(self, layer: int) -> int:
        return self.places[layer][0]

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put token i's `keys[i]` and `values[i]` ([heads, dim]) into `slots[i]`."""
        _, place = self.places[layer]
        self.keys[place].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[place].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor]:
        """The K and V of `slots`, each [len(slots), heads, dim], until the workspace's next use."""
        _, place = self.places[layer]
        stored = self.keys[place].flatten(0, 1), self.values[place].flatten(0, 1)
        places = workspace.pair((len(slots), *stored[0].shape[1:]), stored[0])
        keys, values = (
            torch.index_select(all_of, 0, slots, out=out)
            for all_of, out in zip(stored, places, strict=True)
        )
        return keys, values


def build_kv_store(
    layout: Layout,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVStore:
    """Zeroed memory."""

    def allocate(num_heads: int, width: int) -> Tensor:
        shape = (num_blocks, block_size, num_heads, width)
        if device.type == "cpu":
            return zeros_on_touch(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=device)

    keys = tuple(allocate(page.num_kv_heads, page.k_width) for page in layout.pages)
    values = tuple(allocate(page.num_kv_heads, page.v_width) for page in layout.pages)
    return KVStore(block_size, layout.places(), keys, values)


def zeros_on_touch(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the system hands out only when they are written. `torch.zeros` writes them
    all at once: gigabytes of memory and seconds of start-up for blocks that may never be used.
    """
    num_bytes = prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
    first = -memory.ctypes.data % CACHE_LINE_BYTES
    return torch.from_numpy(memory[first : first + num_bytes]).view(dtype).view(shape)
