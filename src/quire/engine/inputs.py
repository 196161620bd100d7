"""A step's arrays on their way to the device: gathered on the host, sent in one copy."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64]
Array = NDArray[np.int64] | NDArray[np.int32]
ALIGNMENT = 16
"""Bytes at whose multiples each array begins."""


def send(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """The same numbers as tensors on `device`. To a GPU they go as one copy from pinned memory,
    which the host does not wait for."""
    sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
    firsts = list(accumulate(sizes, initial=0))
    packed = torch.empty(firsts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = packed.numpy()
    for array, first in zip(arrays, firsts, strict=False):
        memory[first : first + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    there = packed.to(device, non_blocking=True)
    tensors = []
    for array, first in zip(arrays, firsts, strict=False):
        dtype = torch.int64 if array.dtype == np.int64 else torch.int32
        part = there[first : first + array.nbytes].view(dtype)
        tensors.append(part.view(array.shape))
    return tensors
