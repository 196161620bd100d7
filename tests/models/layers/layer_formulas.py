"""The formulas of what stands between a decoder's linear layers, and what rounding may change."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from quire.models.layers.layer_kernels import LayerKernels
from quire.models.native.decoder.fused import NORM_KINDS, HeadLayout, NormParams
from tests.models.rounding import Exact, in_dtype, rounded, summed, unit
from tests.rounding import compounded

U = unit(torch.float32)
EPSILON = 1e-6
COUNTS = st.integers(1, 40)
WIDTHS = st.one_of(st.integers(1, 100), st.sampled_from((15, 16, 17, 64, 896)))


class Made(NamedTuple):
    """Kernels, for what numbers, and for how many rows of which width."""

    fused: LayerKernels
    dtype: torch.dtype
    rows: st.SearchStrategy[int] = COUNTS
    widths: st.SearchStrategy[int] = WIDTHS

    def numbers(self, *shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.dtype)

    def scale_of(self, width: int, kind: int, seed: int = 1) -> NormParams:
        return NormParams(self.numbers(width, seed=seed), EPSILON, kind)


def normed(x: Tensor, scale: NormParams) -> Exact:
    """A sum of squares, of whose error the root takes half; five operations more, and two with the
    weight, before which what is to be 16 bits is rounded once."""
    numbers = x.double()
    factor = (numbers.square().mean(-1, keepdim=True) + scale.epsilon).rsqrt()
    value = numbers * factor * (scale.weight.double() + (NORM_KINDS[scale.kind] == "one_more"))
    error = (summed(x.shape[-1]) / 2 + compounded(7, U)) * value.abs()
    return in_dtype(rounded_before(Exact(value, error), x.dtype), x.dtype)


def rounded_before(exact: Exact, dtype: torch.dtype) -> Exact:
    """A factor of it was rounded to `dtype`: relative, as no factor is near the least number."""
    if dtype is torch.float32:
        return exact
    return Exact(exact.value, exact.error + compounded(1, unit(dtype)) * exact.value.abs())


def roped(before: Tensor, heads: HeadLayout, cos: Tensor, sin: Tensor) -> Exact:
    """Heads [T, num_heads, head_size], normed if they are to be, and turned."""
    numbers = Exact(before.double(), torch.zeros_like(before, dtype=torch.float64))
    if heads.query is not None and heads.key is not None:
        query, key = before[:, : heads.num_query], before[:, heads.num_query :]
        parts = normed(query, heads.query), normed(key, heads.key)
        numbers = Exact(*(torch.cat(both, 1) for both in zip(*parts, strict=True)))
    half = cos.shape[-1] // 2
    expected = turned(numbers, half, cos.double()[:, None], sin.double()[:, None])
    return in_dtype(expected, before.dtype)


def turned(numbers: Exact, half: int, cos: Tensor, sin: Tensor) -> Exact:
    """Each number is a sum of two products, or is passed on."""
    (a, b, kept), (off_a, off_b, off_kept) = (
        each.split_with_sizes([half, half, each.shape[-1] - 2 * half], -1) for each in numbers
    )
    c, s = cos[..., :half], sin[..., :half]
    value = torch.cat((a * c - b * s, b * c + a * s, kept), -1)
    (a, b), (c, s) = (a.abs(), b.abs()), (c.abs(), s.abs())
    sums = compounded(2, U)
    error = (
        off_a * c + off_b * s + sums * (a * c + b * s),
        off_b * c + off_a * s + sums * (b * c + a * s),
        off_kept,
    )
    return Exact(value, torch.cat(error, -1))


def opened(x: Tensor, gates: Tensor) -> Exact:
    """Heads through the sigmoids of gates, each of which is an exponential and three operations."""
    sigmoids, values = torch.sigmoid(gates.double()), x.double()
    error = 10 * U * sigmoids
    if x.dtype is not torch.float32:
        error += rounded(sigmoids, x.dtype)
    return in_dtype(Exact(sigmoids * values, error * values.abs()), x.dtype)


def gated(x: Tensor, act: str) -> Exact:
    """An exponential, of six units, and four operations. A tangent is eight units of 1 off, before
    1 is added to it; a reciprocal of what is to be 16 bits is 2**-14 of itself off."""
    gates, values = x.double().chunk(2, -1)
    acted = silu(gates) if act == "silu" else gelu(gates, approximate="tanh")
    relative, of_gates = (10 * U, 0.0) if act == "silu" else (8 * U, 8 * U)
    error = relative * (acted * values).abs() + of_gates * (gates * values).abs()
    if x.dtype is not torch.float32:
        error += 2.0**-14 * (acted * values).abs() + rounded(acted, x.dtype) * values.abs()
    return in_dtype(Exact(acted * values, error), x.dtype)
