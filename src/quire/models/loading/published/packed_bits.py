"""Integers of few bits in 32-bit words, as GPTQ, AWQ and others store them."""

import torch
from torch import Tensor

WORD_BITS = 32


def unpacked_bits(words: Tensor, num_bits: int) -> Tensor:
    """Return the integers of words [..., W] of int32, the lowest bits first: [..., W x 32 /
    num_bits] of uint8. `num_bits` divides 32 and is at most 8."""
    shifts = torch.arange(0, WORD_BITS, num_bits, dtype=torch.int32)
    fields = words[..., None] >> shifts & (1 << num_bits) - 1
    return fields.to(torch.uint8).flatten(-2)
