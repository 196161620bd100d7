"""What rounding may change of tensors: see tests/rounding.py."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tests.rounding import LAMBDA, compounded


class Exact(NamedTuple):
    """What is computed, in float64, and how far from each number rounding may lead."""

    value: Tensor
    error: Tensor


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff: half of what lies between 1 and the next number."""
    return torch.finfo(dtype).eps / 2


def summed(num_terms: int, dtype: torch.dtype = torch.float32) -> float:
    """What a sum of so many products is off at most, in parts of the sum of absolute products."""
    return compounded(min(num_terms, LAMBDA * math.sqrt(num_terms)), unit(dtype))


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """What rounding `exact` to `dtype` changes at most: by half of its least number near zero."""
    limits = torch.finfo(dtype)
    return exact.abs() * unit(dtype) + limits.smallest_normal * unit(dtype)


def linear_exactly(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, num_roundings: int, dtype: torch.dtype
) -> Exact:
    """x [..., k] weight [n, k]^T + bias, where each product goes through so many roundings to
    float32, and the result is then rounded to `dtype`."""
    value, sizes = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    if bias is not None:
        value, sizes = value + bias.double(), sizes + bias.double().abs()
    return in_dtype(Exact(value, summed(num_roundings) * sizes), dtype)


def in_dtype(exact: Exact, dtype: torch.dtype) -> Exact:
    """What float32 gave, rounded to `dtype`."""
    if dtype is torch.float32:
        return exact
    return Exact(exact.value, exact.error + rounded(exact.value.abs() + exact.error, dtype))


def assert_within(found: Tensor, exact: Exact) -> None:
    """Each of `found` is a number, and no further from the exact one than it may be."""
    wanted, limit = exact.value.double(), exact.error.double().expand_as(exact.value)
    error = (found.double() - wanted).abs()
    wrong = ~(error <= limit)
    if wrong.any():
        worst = int((error / limit).nan_to_num(torch.inf).argmax())
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} are further off than rounding explains: "
            f"{float(found.flatten()[worst])} for {float(wanted.flatten()[worst])}, off by "
            f"{float(error.flatten()[worst]):.3g} where {float(limit.flatten()[worst]):.3g} "
            f"is allowed"
        )
