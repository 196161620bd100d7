"""Copies host tensors to the device, all of a step in one transfer."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 16
"""Each tensor begins at a multiple of so many bytes in the packed copy."""


def send(pieces: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the same values, dtypes and shapes on `device`.

    To a GPU they are copied at once from pinned memory without waiting; torch's caching host
    allocator does not reuse that memory before the copy is done. On a CPU they are returned as
    they are.
    """
    if device.type == "cpu":
        return list(pieces)
    packed = pack(pieces, is_pinned=device.type == "cuda")
    return unpack(packed.to(device, non_blocking=True), pieces)


def pack(pieces: Sequence[Tensor], *, is_pinned: bool = False) -> Tensor:
    """Return all tensors in one uint8 tensor, each at a multiple of ALIGNMENT."""
    num_bytes = sum(map(_num_bytes, pieces))
    packed = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
    for part, piece in zip(unpack(packed, pieces), pieces, strict=True):
        part.copy_(piece)
    return packed


def unpack(packed: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
    """Return views of `packed`, on its device, with the dtypes and shapes of `pieces`."""
    parts, first = [], 0
    for piece in pieces:
        part = packed[first : first + piece.nbytes]
        parts.append(part.view(piece.dtype).view(piece.shape))
        first += _num_bytes(piece)
    return parts


def _num_bytes(piece: Tensor) -> int:
    return -(-piece.nbytes // ALIGNMENT) * ALIGNMENT
