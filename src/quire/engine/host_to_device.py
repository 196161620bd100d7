"""Numbers of the host on their way to the device: gathered here, sent in one copy."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes at whose multiples each piece begins."""


def send(pieces: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same numbers on `device`. To a GPU they go as one copy from pinned memory, which the host
    does not wait for; torch gives that memory out again when the copy is over. A CPU has them."""
    if device.type == "cpu":
        return list(pieces)
    packed = pack(pieces, is_pinned=device.type == "cuda")
    return unpack(packed.to(device, non_blocking=True), pieces)


def pack(pieces: Sequence[Tensor], *, is_pinned: bool = False) -> Tensor:
    """All of them in one stretch of bytes."""
    num_bytes = sum(map(_num_bytes, pieces))
    packed = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
    for part, piece in zip(unpack(packed, pieces), pieces, strict=True):
        part.copy_(piece)
    return packed


def unpack(packed: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
    """Views of what `pack` made of pieces like these, wherever it is now."""
    parts, first = [], 0
    for piece in pieces:
        part = packed[first : first + piece.nbytes]
        parts.append(part.view(piece.dtype).view(piece.shape))
        first += _num_bytes(piece)
    return parts


def _num_bytes(piece: Tensor) -> int:
    return -(-piece.nbytes // ALIGNMENT) * ALIGNMENT
