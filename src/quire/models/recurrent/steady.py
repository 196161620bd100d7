"""Functions of single numbers whose results are the same to the bit for one row and for many.

On a CPU torch computes whole vectors of numbers by one formula and those that are left over by
another, and each thread's share has some of these: an exponential would then depend on what else is
in the step, and a state with it.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

VECTORS = 64
"""A multiple of the numbers that torch takes at once: two vectors of 512 bits with bfloat16."""
ONE_THREAD = 1 << 14
"""Fewer numbers than torch divides among threads (32,768), in whole VECTORS."""


def steady(function: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
    """Return `function` of each of the numbers; it keeps their shape."""
    if numbers.device.type != "cpu":
        return function(numbers)
    flat = numbers.flatten()
    padded = pad(flat, (0, -len(flat) % VECTORS))
    parts = [function(part) for part in torch.split(padded, ONE_THREAD)]
    return torch.cat(parts)[: len(flat)].view(numbers.shape)
