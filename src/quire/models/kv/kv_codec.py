"""Codecs store K and V as computed, or as one-byte numbers with one scale per token and head.

Each token is encoded by itself, so what is read of it never depends on what came with it. Zeros
stay zeros; a vector that holds an infinity or a NaN reads as non-finite in every element, and so
may one within a hundredth of the largest number that the model's dtype can hold.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.config import KVCacheDtype

SMALLEST_SCALE = torch.finfo(torch.bfloat16).tiny


class EncodedKV(NamedTuple):
    """`elements` [..., heads, head_size] and, if quantised, `scales` [..., heads], bfloat16."""

    elements: Tensor
    scales: Tensor | None


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes K and V for storage, and decodes them.

    dtype: what the model computes in.
    number: the dtype of the stored numbers. One-byte numbers lie in int8 tensors whatever they
        mean, since float8 tensors cannot be indexed everywhere.
    peak: the largest `number` used; None where nothing is scaled.
    """

    dtype: torch.dtype
    number: torch.dtype
    peak: float | None = None

    @property
    def is_quantised(self) -> bool:
        return self.peak is not None

    @property
    def stored(self) -> torch.dtype:
        return torch.int8 if self.is_quantised else self.dtype

    def encode(self, tensor: Tensor) -> EncodedKV:
        """Return the stored form of K or V [..., kv heads, head_size].

        The scale is amax / peak rounded up to bfloat16, so that no element passes `peak`: the bits
        of a positive float, read as an integer, count upwards with it.
        """
        if self.peak is None:
            return EncodedKV(tensor, None)
        exact = (tensor.abs().amax(-1).float() / self.peak).clamp_min_(SMALLEST_SCALE)
        near = exact.bfloat16()
        scales = (near.view(torch.int16) + (near < exact)).view(torch.bfloat16)
        numbers = tensor / scales.float()[..., None]
        if not self.number.is_floating_point:
            numbers.round_()
        numbers.clamp_(-self.peak, self.peak)
        return EncodedKV(numbers.to(self.number).view(torch.int8), scales)

    def decode(self, encoded: EncodedKV, out: Tensor) -> Tensor:
        """Write numbers times scales to `out`, of the model's dtype, and return it.

        That dtype holds the stored numbers exactly. A float16 would not hold the scale, and is
        multiplied in float32.
        """
        elements, scales = encoded
        if scales is None:
            return out.copy_(elements)
        wide = torch.float32 if out.dtype is torch.float16 else out.dtype
        return out.copy_(elements.view(self.number)).mul_(scales.to(wide)[..., None])


def choose_codec(kept_as: KVCacheDtype, dtype: torch.dtype) -> Codec:
    """Return the codec of K and V that a model computes in `dtype`."""
    match kept_as:
        case KVCacheDtype.AUTO:
            return Codec(dtype, dtype)
        case KVCacheDtype.INT8:
            return Codec(dtype, torch.int8, peak=127.0)
        case KVCacheDtype.FP8_E4M3:
            return Codec(dtype, torch.float8_e4m3fn, peak=448.0)
