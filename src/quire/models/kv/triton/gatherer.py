"""Gathers blocks into rows by one launch of a kernel, whatever the number of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
import triton.language as tl
from torch import Tensor

from quire.cache.layout import ROW_ALIGNMENT
from quire.models.kv.rows import block_bytes, row_offsets
from quire.models.kv.torch_gatherer import to_device
from quire.models.kv.triton.copy_kernel import copy_tiles

TILE_COUNT = 1024
"""The most numbers that one program copies: of 8 bytes, four loads of 16 for each of its threads.
More of fewer bytes would spill registers."""
NUM_WARPS = 4
ELEMENTS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a block, for the kernel.

    store, staging: int64 [num_tiles, 2], where each begins in block or row 0, and the bytes from
    there to the next. counts: int64 [num_tiles], in elements of the kernel. alignment: what divides
    all of them, in bytes.
    """

    store: Tensor
    staging: Tensor
    counts: Tensor
    alignment: int


class TritonGatherer:
    """Implements `Gatherer` for the tensors of a store and its staging memory."""

    def __init__(self, tensors: Sequence[Tensor], staging: Tensor) -> None:
        self._memory = (*tensors, staging)  # stays where the addresses say
        self._tiles = build_tiles(tensors, staging)
        self._constants = copy_constants(self._tiles.alignment)
        self._rows = torch.arange(len(staging), device=staging.device)
        self._device = staging.device

    def gather(self, blocks: Sequence[int], first_row: int) -> None:
        rows = self._rows[first_row:]
        self._launch(self._tiles.store, self._tiles.staging, self._sent(blocks), rows, len(blocks))

    def scatter(self, blocks: Sequence[int], first_row: int) -> None:
        rows = self._rows[first_row:]
        self._launch(self._tiles.staging, self._tiles.store, rows, self._sent(blocks), len(blocks))

    def fork(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        store, ids = self._tiles.store, self._sent([*sources, *targets])
        self._launch(store, store, ids, ids[len(sources) :], len(sources))

    def _sent(self, blocks: Sequence[int]) -> Tensor:
        return to_device(blocks, self._device)

    def _launch(
        self, sources: Tensor, targets: Tensor, source_ids: Tensor, target_ids: Tensor, count: int
    ) -> None:
        num_tiles = len(self._tiles.counts)
        copy_tiles[(num_tiles * count,)](
            sources,
            targets,
            self._tiles.counts,
            source_ids,
            target_ids,
            num_tiles,
            num_warps=NUM_WARPS,
            **self._constants,
        )


def element_bytes(alignment: int) -> int:
    """Return the bytes of a kernel's number; two of 8 make one load of 16."""
    return min(alignment, max(ELEMENTS))


def copy_constants(alignment: int) -> dict[str, object]:
    """Return the constants of the kernel for tiles of which `alignment` divides all bytes."""
    element = ELEMENTS[element_bytes(alignment)]
    return {"COUNT": TILE_COUNT, "ELEMENT": element, "ALIGNMENT": alignment}


def build_tiles(tensors: Sequence[Tensor], staging: Tensor) -> Tiles:
    """Return the tiles of a block of `tensors` and of a row of `staging`, on its device."""
    sizes = [block_bytes(tensor) for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in (*tensors, staging)]
    alignment = gcd(ROW_ALIGNMENT, *sizes, *addresses)
    number_bytes = element_bytes(alignment)
    tile_bytes = TILE_COUNT * number_bytes
    store: list[tuple[int, int]] = []
    staged: list[tuple[int, int]] = []
    counts: list[int] = []
    for tensor, size, offset in zip(tensors, sizes, row_offsets(tensors), strict=False):
        for begin in range(0, size, tile_bytes):
            store.append((tensor.data_ptr() + begin, size))
            staged.append((staging.data_ptr() + offset + begin, staging.stride(0)))
            counts.append(min(tile_bytes, size - begin) // number_bytes)
    tables = [torch.tensor(table, device=staging.device) for table in (store, staged, counts)]
    return Tiles(tables[0], tables[1], tables[2], alignment)
