"""Attention of one token in float64, and how far from it a backend may be by rounding alone.

With weights p of the keys and `out` the mean of the values by them, an error of e in a score moves
the result by p e (value - out). What is an error is, in units u of float32,

- in a score: that of a sum of `head_size` products, and its scaling (four roundings: of the scale,
  by it, to powers of two, and by the scale of a quantised key). A soft cap flattens it, and adds
  TANH of the cap;
- in a weight: the difference from the largest score, rounded twice; the exponential, EXPONENTIAL,
  and once more each time that a new largest score is met, which among keys in no order is about as
  often as the logarithm of their number, and twice where parts come together;
- in the result: two sums of as many terms as there are keys, a quotient, two products, and that
  of a weight and the scale of a quantised value.

Where the model computes in 16 bits, weights and result are rounded to these, and the exponential is
a sixteenth of such a rounding off. Weights, parts of the largest, that are too small for a float16
are off by half of its least number each, or twice that where scales of values are in them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.config import LayerFacts
from tests.models.rounding import Exact, rounded, summed, unit

EXPONENTIAL = 6
"""A library's is right within 1 or 2 units, ours within 3e-7: see native/attention/lanes.h."""
TANH = 8
"""Of the cap: two exponentials as a difference, and a quotient."""
SECOND_ORDER = 1.02
"""Errors of errors, for those of up to a hundredth."""
LEAST = 1e-34
"""Weights below exp(-80) may be any as small."""


class Seen(NamedTuple):
    """What one token's query [heads, head_size] meets, in float64: keys [L, heads, head_size],
    values [L, heads, v_head_size], and the sinks [heads] if there are any."""

    query: Tensor
    key: Tensor
    value: Tensor
    sinks: Tensor | None


def attend_exactly(layer: LayerFacts, seen: Seen, dtype: torch.dtype) -> Exact:
    """The result [heads, v_head_size]. `dtype`: what the model computes in."""
    scores, error = _scores(layer, seen)
    value = seen.value
    if seen.sinks is not None:
        scores = torch.cat([scores, seen.sinks[None]])
        error = torch.cat([error, 2 * unit(torch.float32) * seen.sinks.abs()[None]])
        value = torch.cat([value, torch.zeros_like(value[:1])])
    weights = scores.softmax(0)
    out, sizes = _weighted(weights, value), value.abs()
    size = _weighted(weights, sizes)
    spread = _weighted(weights * (error + _of_weights(scores)), (value - out).abs_())
    changed = spread + (summed(len(scores)) + 4 * unit(torch.float32)) * (size + out.abs())
    if dtype != torch.float32:
        changed += (1 + 1 / 16) * unit(dtype) * size
        least = torch.finfo(dtype).smallest_normal * 2 * unit(dtype)
        changed += len(scores) * least * sizes.amax((0, 2), keepdim=True)[0]
    return Exact(out, SECOND_ORDER * (changed + rounded(out, dtype)) + LEAST)


def _scores(layer: LayerFacts, seen: Seen) -> tuple[Tensor, Tensor]:
    """Scores [L, heads] and what they may be off."""
    u = unit(torch.float32)
    scores, sizes = (
        torch.einsum("lhd,hd->lh", key, query) * layer.scale
        for key, query in ((seen.key, seen.query), (seen.key.abs(), seen.query.abs()))
    )
    error = summed(layer.head_size) * sizes + 4 * u * scores.abs()
    if layer.softcap is None:
        return scores, error
    capped = torch.tanh(scores / layer.softcap)
    error = error * (1 - capped.square()) + TANH * u * layer.softcap
    return layer.softcap * capped, error


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """The sum [heads, width] of `value` [L, heads, width] by weights [L, heads]."""
    return torch.einsum("lh,lhv->hv", weights, value)


def _of_weights(scores: Tensor) -> Tensor:
    """What exponentials and what rescales them may be off, relative."""
    num_exponentials = 3 + math.log2(len(scores))
    below = scores.amax(0) - scores
    return unit(torch.float32) * (2 * below + EXPONENTIAL * num_exponentials)
