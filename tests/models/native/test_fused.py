"""What stands between the linear layers against the same formulas in torch's floats."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from quire.models.native.decoder.fused import (
    ACTIVATIONS,
    NORM_KINDS,
    FusedKernels,
    HeadLayout,
    NormParams,
    bind_fused,
)
from quire.models.native.library import ISAS
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.rounding import Exact, assert_within, in_dtype, summed, unit
from tests.rounding import compounded

U = unit(torch.float32)
COUNTS = st.integers(1, 40)
WIDTHS = st.one_of(st.integers(1, 100), st.sampled_from((15, 16, 17, 64, 896)))
EPSILON = 1e-6


class Made(NamedTuple):
    """By an instruction set, and for what numbers."""

    fused: FusedKernels
    dtype: torch.dtype

    def numbers(self, *shape: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.dtype)

    def scale_of(self, width: int, kind: int, seed: int = 1) -> NormParams:
        return NormParams(self.numbers(width, seed=seed), EPSILON, kind)


@pytest.fixture(
    scope="module",
    params=[
        *((isa, torch.float32) for isa in ISAS),
        *((isa, torch.bfloat16) for isa in ISAS_WITH_PRODUCTS),
    ],
    ids=lambda case: f"{case[0]} {case[1]}",
)
def made(request: pytest.FixtureRequest) -> Made:
    isa, dtype = request.param
    fused = bind_fused(library_of(isa))
    assert dtype in fused.dtypes
    return Made(fused, dtype)


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


@given(
    COUNTS,
    WIDTHS,
    st.sampled_from(range(len(NORM_KINDS))),
    st.sampled_from((1.0, 2.0**-12, 2.0**20)),
)
def test_norm_is_the_formula(made: Made, rows: int, width: int, kind: int, size: float) -> None:
    x, scale = made.numbers(rows, width) * size, made.scale_of(width, kind)
    before = x.clone()
    assert_within(made.fused.norm(x, scale), normed(before, scale))
    assert torch.equal(x, before)


@given(COUNTS, WIDTHS)
def test_norm_of_a_sum_leaves_the_sum(made: Made, rows: int, width: int) -> None:
    x, added, scale = (
        made.numbers(rows, width),
        made.numbers(rows, width, seed=2),
        made.scale_of(width, 0),
    )
    sums = x + added
    assert_within(made.fused.norm(x, scale, added), normed(sums, scale))
    assert torch.equal(x, sums)


@given(
    rows=COUNTS,
    num_heads=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    sizes=st.tuples(st.integers(1, 40), st.integers(0, 20)),
    is_normed=st.booleans(),
)
def test_rope_turns_the_halves_of_each_head(
    made: Made, *, rows: int, num_heads: tuple[int, int], sizes: tuple[int, int], is_normed: bool
) -> None:
    (num_query, num_key), (half, passed) = num_heads, sizes
    width = 2 * half + passed
    norms = (
        (made.scale_of(width, 0), made.scale_of(width, 0, seed=3)) if is_normed else (None, None)
    )
    heads = HeadLayout(num_query, num_key, width, *norms)
    x, rest = made.numbers(rows, (num_query + num_key + 2) * width), 2 * width
    angles = torch.randn(rows, half, generator=torch.Generator().manual_seed(4)).repeat(1, 2)
    cos, sin = angles.cos().to(made.dtype), angles.sin().to(made.dtype)
    out = x.clone()
    made.fused.rope(out, heads, cos, sin)
    assert torch.equal(out[:, -rest:], x[:, -rest:])
    before = x[:, :-rest].view(rows, -1, width)
    numbers = Exact(before.double(), torch.zeros_like(before, dtype=torch.float64))
    if is_normed:
        assert heads.query is not None and heads.key is not None
        parts = normed(before[:, :num_query], heads.query), normed(before[:, num_query:], heads.key)
        numbers = Exact(*(torch.cat(both, 1) for both in zip(*parts, strict=True)))
    expected = turned(numbers, half, cos.double()[:, None], sin.double()[:, None])
    assert_within(out[:, :-rest].view(rows, -1, width), in_dtype(expected, made.dtype))


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


@given(COUNTS, WIDTHS, st.sampled_from(ACTIVATIONS))
def test_gate_lets_through(made: Made, rows: int, width: int, act: str) -> None:
    """An exponential, of six units, and four operations. A tangent is eight units of 1 off, before
    1 is added to it; a reciprocal of what is to be 16 bits is 2**-14 of itself off."""
    x = made.numbers(rows, 2 * width) * 4
    gates, values = torch.split(x.double(), [width, width], -1)
    acted = silu(gates) if act == "silu" else gelu(gates, approximate="tanh")
    relative, of_gates = (10 * U, 0.0) if act == "silu" else (8 * U, 8 * U)
    if made.dtype is torch.bfloat16:
        relative += 2.0**-14
    error = relative * (acted * values).abs() + of_gates * (gates * values).abs()
    exact = rounded_before(Exact(acted * values, error), made.dtype)
    assert_within(made.fused.gate(x, ACTIVATIONS.index(act)), in_dtype(exact, made.dtype))


@given(COUNTS, WIDTHS)
def test_sum_is_torchs(made: Made, rows: int, width: int) -> None:
    a, b = made.numbers(rows, width), made.numbers(rows, width, seed=1)
    assert torch.equal(made.fused.sum(a, b), a + b)


def test_gates_far_from_zero_are_all_or_nothing(made: Made) -> None:
    x = torch.tensor([[3e38, -3e38, 100.0, -100.0, 1.0, 1.0, 1.0, 1.0]]).to(made.dtype)
    for act in range(len(ACTIVATIONS)):
        assert torch.equal(made.fused.gate(x, act), x[:, :4].clamp(min=0))


def test_what_is_not_finite_stays_in_its_row(made: Made) -> None:
    x = made.numbers(3, 64)
    x[1, 5] = torch.nan
    for out in (
        made.fused.norm(x.clone(), made.scale_of(64, 0)),
        made.fused.gate(x, 0),
        made.fused.sum(x, x),
    ):
        assert out[1].isnan().any() and out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("rows", [7, 200])
def test_rows_are_the_same_alone_and_on_any_number_of_threads(made: Made, rows: int) -> None:
    x, scale = made.numbers(rows, 896), made.scale_of(896, 0)
    together = [made.fused.norm(x, scale), made.fused.gate(x, 0), made.fused.sum(x, x)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for row in range(rows):
        one = x[row : row + 1]
        alone = [made.fused.norm(one, scale), made.fused.gate(one, 0), made.fused.sum(one, one)]
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))
    torch.set_num_threads(threads)
