"""Integers of few bits in 32-bit words, as GPTQ, AWQ, MLX and others store them."""

from math import lcm

import torch
from torch import Tensor

WORD_BITS = 32
BYTE_BITS = 8


def unpacked_bits(words: Tensor, num_bits: int) -> Tensor:
    """Return the integers of words [..., W] of 32 bits, the lowest bits first and across words:
    [..., W x 32 / num_bits] of uint8. `num_bits` is at most 8."""
    content = words.contiguous().view(torch.uint8)
    run_bits = lcm(num_bits, BYTE_BITS)
    runs = content.view(*content.shape[:-1], -1, run_bits // BYTE_BITS)
    wide = torch.int32 if run_bits < WORD_BITS else torch.int64
    whole = runs[..., 0] if run_bits == BYTE_BITS else runs[..., 0].to(wide)
    for place in range(1, run_bits // BYTE_BITS):
        whole |= runs[..., place].to(wide) << place * BYTE_BITS
    numbers = torch.empty(*whole.shape, run_bits // num_bits, dtype=torch.uint8)
    for place in range(run_bits // num_bits):
        numbers[..., place] = whole >> place * num_bits & (1 << num_bits) - 1
    return numbers.flatten(-2)
