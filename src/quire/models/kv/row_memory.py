"""Memory of the host for rows, which is used again: fresh pages cost more than the copy itself."""

from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_FREE_BYTES = 32 << 20


class RowMemory:
    """Keeps pieces of `piece_bytes` for rows of `row_bytes`. A piece comes back when the last user
    of its memory is gone, in whatever thread. New rows are taken by one thread."""

    def __init__(self, row_bytes: int, piece_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._piece_bytes = piece_bytes
        self._free: list[NDArray[np.uint8]] = []

    def new_rows(self, num_rows: int) -> Tensor:
        """Return rows of any content. Those that are less than half of a piece get memory of their
        own, so that small ones hold no large pieces."""
        shape, num_bytes = (num_rows, self._row_bytes), num_rows * self._row_bytes
        if not self._piece_bytes // 2 <= num_bytes <= self._piece_bytes:
            return torch.empty(shape, dtype=torch.uint8)
        piece = self._free.pop() if self._free else np.empty(self._piece_bytes, np.uint8)
        held = piece[:num_bytes].reshape(shape)
        finalize(held, self._take_back, piece).atexit = False
        return torch.from_numpy(held)

    def _take_back(self, piece: NDArray[np.uint8]) -> None:
        if len(self._free) * self._piece_bytes < MAX_FREE_BYTES:
            self._free.append(piece)
