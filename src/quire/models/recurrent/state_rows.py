"""Copies the states of recurrent layers to rows of bytes and back. A state is one range of memory,
so a row is one copy, from a GPU too."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.models.kv.kv_rows import HOST_BYTES
from quire.models.kv.row_memory import RowMemory
from quire.models.kv.streams import CUDAStream, Instant, Mark
from quire.models.recurrent.state_store import StateStore


class StateRows:
    """Implements `BlockRows` for the states of a store."""

    def __init__(self, store: StateStore) -> None:
        self._states = store.rows.view(torch.uint8)
        self._memory = RowMemory(self.row_bytes, self.max_rows * self.row_bytes)

    @property
    def row_bytes(self) -> int:
        return self._states.shape[1]

    @property
    def max_rows(self) -> int:
        return max(HOST_BYTES // self.row_bytes, 1)

    def new_rows(self, num_rows: int) -> Tensor:
        if self._states.device.type == "cpu":
            return self._memory.new_rows(num_rows)
        shape = (num_rows, self.row_bytes)
        return torch.empty(shape, dtype=torch.uint8, pin_memory=self._states.is_cuda)

    @torch.inference_mode()
    def read(self, blocks: Sequence[int], rows: Tensor) -> Mark:
        for row, state_id in zip(rows, blocks, strict=False):
            row.copy_(self._states[state_id], non_blocking=True)
        if not self._states.is_cuda:
            return Instant(time.monotonic())
        return CUDAStream(torch.cuda.current_stream(self._states.device)).mark()

    @torch.inference_mode()
    def write(self, rows: Tensor, blocks: Sequence[int]) -> None:
        for row, state_id in zip(rows, blocks, strict=False):
            self._states[state_id].copy_(row, non_blocking=True)
