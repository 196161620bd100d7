"""Copies host tensors to the device, all of a step in one transfer."""

from collections.abc import Sequence

import torch
from torch import Tensor

CPU = torch.device("cpu")
ALIGNMENT = 16
"""The alignment of each tensor in the packed copy, in bytes."""


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of the same values, dtypes and shapes on `device`.

    To a GPU they are copied at once from pinned memory without waiting; torch's caching host
    allocator does not reuse that memory before the copy is done. On a CPU they are returned as
    they are.
    """
    if device.type == "cpu":
        return list(tensors)
    packed = pack(tensors, is_pinned=device.type == "cuda")
    return unpack(packed.to(device, non_blocking=True), tensors)


def pack(
    tensors: Sequence[Tensor], *, is_pinned: bool = False, device: torch.device = CPU
) -> Tensor:
    """Return all tensors in one uint8 tensor on `device`, each at a multiple of ALIGNMENT."""
    size = packed_bytes(tensors)
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned, device=device)
    for part, tensor in zip(unpack(packed, tensors), tensors, strict=True):
        part.copy_(tensor)
    return packed


def packed_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of the tensor that holds all of these."""
    return sum(map(_num_bytes, tensors))


def unpack(packed: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of `packed`, on its device, with the dtypes and shapes of `tensors`."""
    parts, first = [], 0
    for tensor in tensors:
        part = packed[first : first + tensor.nbytes]
        parts.append(part.view(tensor.dtype).view(tensor.shape))
        first += _num_bytes(tensor)
    return parts


def _num_bytes(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
