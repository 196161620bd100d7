"""Copies blocks of a KV store to rows of bytes and back, in the order of the computing."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.models.kv.kv_store import KVStore
from quire.models.kv.row_memory import RowMemory
from quire.models.kv.rows import row_offsets
from quire.models.kv.staged_queue import Gatherer, build_gatherer
from quire.models.kv.streams import CUDAStream, Instant, Mark, Stream

HOST_BYTES = 4 << 20
"""The most bytes of one call where the device is the host: about a millisecond of a step."""
STAGING_BYTES = 16 << 20
"""The memory of another device through which rows come and go."""


class HostRows:
    """Implements `BlockRows` for a store in the host's memory. Bytes are copied by one thread: the
    parts of a block are small, and torch would wake all of its threads for each."""

    def __init__(self, store: KVStore) -> None:
        self._row_bytes = store.row_bytes
        self._blocks = [_as_bytes(tensor) for tensor in store.tensors]
        self._offsets = row_offsets(store.tensors)
        self._memory = RowMemory(self._row_bytes, self.max_rows * self._row_bytes)

    @property
    def row_bytes(self) -> int:
        return self._row_bytes

    @property
    def max_rows(self) -> int:
        return max(HOST_BYTES // self.row_bytes, 1)

    def new_rows(self, num_rows: int) -> Tensor:
        return self._memory.new_rows(num_rows)

    def read(self, blocks: Sequence[int], rows: Tensor) -> Mark:
        to = rows.numpy()
        for of_rows, ids in _parts(blocks):
            for kept, offset in zip(self._blocks, self._offsets, strict=False):
                to[of_rows, offset : offset + kept.shape[1]] = kept[ids]
        return Instant(time.monotonic())

    def write(self, rows: Tensor, blocks: Sequence[int]) -> None:
        held = rows.numpy()
        for of_rows, ids in _parts(blocks):
            for kept, offset in zip(self._blocks, self._offsets, strict=False):
                kept[ids] = held[of_rows, offset : offset + kept.shape[1]]


class StagedRows:
    """Implements `BlockRows` for a store on a GPU, by memory there, uint8 [rows, row bytes], that
    kernels gather blocks to and scatter them from. All of it is work of `stream`, the current one,
    in its order."""

    def __init__(self, gatherer: Gatherer, staging: Tensor, stream: Stream) -> None:
        self._gatherer = gatherer
        self._staging = staging
        self._stream = stream

    @property
    def row_bytes(self) -> int:
        return self._staging.shape[1]

    @property
    def max_rows(self) -> int:
        return len(self._staging)

    def new_rows(self, num_rows: int) -> Tensor:
        is_pinned = self._staging.device.type == "cuda"
        return torch.empty((num_rows, self.row_bytes), dtype=torch.uint8, pin_memory=is_pinned)

    @torch.inference_mode()
    def read(self, blocks: Sequence[int], rows: Tensor) -> Mark:
        self._gatherer.gather(blocks, 0)
        rows[: len(blocks)].copy_(self._staging[: len(blocks)], non_blocking=True)
        return self._stream.mark()

    @torch.inference_mode()
    def write(self, rows: Tensor, blocks: Sequence[int]) -> None:
        self._staging[: len(blocks)].copy_(rows[: len(blocks)], non_blocking=True)
        self._gatherer.scatter(blocks, 0)


def _parts(blocks: Sequence[int]) -> Iterator[tuple[slice, slice | list[int]]]:
    """Yield slices of rows with the blocks that they are copied from or to: as slices too where
    blocks are side by side, which is copied twice as fast, and all others together."""
    starts = [at for at, each in enumerate(blocks) if not at or each != blocks[at - 1] + 1]
    if 2 * len(starts) > len(blocks):
        yield slice(len(blocks)), list(blocks)
        return
    for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True):
        yield slice(start, end), slice(blocks[start], blocks[start] + end - start)


def _as_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the same memory as bytes [num_blocks, bytes of a block]."""
    words: NDArray[np.uint8] = tensor.flatten(1).view(torch.uint8).numpy()
    return words


def staging_rows(row_bytes: int) -> int:
    """Return the rows of the staging memory, one at least."""
    return max(STAGING_BYTES // row_bytes, 1)


def build_kv_rows(store: KVStore, device: torch.device) -> HostRows | StagedRows:
    """Return what copies the blocks of a store on `device`; on a GPU that takes staging memory."""
    if device.type == "cpu":
        return HostRows(store)
    shape = (staging_rows(store.row_bytes), store.row_bytes)
    staging = torch.empty(shape, dtype=torch.uint8, device=device)
    stream = CUDAStream(torch.cuda.current_stream(device))
    return StagedRows(build_gatherer(store.tensors, staging), staging, stream)
