"""What stands between the linear layers against the same formulas in torch's floats."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from quire.models.native.fused import ACTS, KINDS, FusedKernels, Heads, Scale, bind_fused

ROUNDED = 2.0**-7
"""Two roundings to bfloat16, relative."""
SMALL = 1e-5

COUNTS = st.integers(1, 40)
WIDTHS = st.one_of(st.integers(1, 100), st.sampled_from((15, 16, 17, 64, 896)))
EPSILON = 1e-6


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def assert_close(found: Tensor, expected: Tensor, size: Tensor | None = None) -> None:
    """`size`: of what was added up to `expected`, if that is larger."""
    allowed = ROUNDED * (expected.abs() if size is None else size) + SMALL
    assert found.dtype == torch.bfloat16
    assert ((found.float() - expected).abs() <= allowed).all()


def normed(x: Tensor, scale: Scale) -> Tensor:
    floats = x.float()
    unit = floats * (floats.square().mean(-1, keepdim=True) + scale.epsilon).rsqrt()
    return unit * (scale.weight.float() + (KINDS[scale.kind] == "one_more"))


def scale_of(width: int, kind: int, seed: int = 1) -> Scale:
    return Scale(numbers(width, seed=seed), EPSILON, kind)


@given(
    COUNTS, WIDTHS, st.sampled_from(range(len(KINDS))), st.sampled_from((1.0, 2.0**-12, 2.0**20))
)
def test_norm_is_the_formula(
    fused: FusedKernels, rows: int, width: int, kind: int, size: float
) -> None:
    x, scale = numbers(rows, width) * size, scale_of(width, kind)
    before = x.clone()
    assert_close(fused.norm(x, scale), normed(before, scale))
    assert torch.equal(x, before)


@given(COUNTS, WIDTHS)
def test_norm_of_a_sum_leaves_the_sum(fused: FusedKernels, rows: int, width: int) -> None:
    x, added, scale = numbers(rows, width), numbers(rows, width, seed=2), scale_of(width, 0)
    sums = x + added
    assert_close(fused.norm(x, scale, added), normed(sums, scale))
    assert torch.equal(x, sums)


@given(
    rows=COUNTS,
    num_query=st.integers(1, 5),
    num_key=st.integers(1, 3),
    half=st.integers(1, 40),
    passed=st.integers(0, 20),
    is_normed=st.booleans(),
)
def test_rope_turns_the_halves_of_each_head(
    fused: FusedKernels,
    rows: int,
    num_query: int,
    num_key: int,
    half: int,
    passed: int,
    is_normed: bool,
) -> None:
    width = 2 * half + passed
    norms = (scale_of(width, 0), scale_of(width, 0, seed=3)) if is_normed else (None, None)
    heads = Heads(num_query, num_key, width, *norms)
    x, rest = numbers(rows, (num_query + num_key + 2) * width), 2 * width
    angles = torch.randn(rows, half, generator=torch.Generator().manual_seed(4)).repeat(1, 2)
    cosines, sines = angles.cos().bfloat16(), angles.sin().bfloat16()
    out = x.clone()
    fused.rope(out, heads, cosines, sines)
    assert torch.equal(out[:, -rest:], x[:, -rest:])
    before = x[:, :-rest].view(rows, -1, width)
    query, key = before[:, :num_query], before[:, num_query:]
    if is_normed:
        assert heads.query is not None and heads.key is not None
        query, key = normed(query, heads.query), normed(key, heads.key)
    floats = torch.cat((query.float(), key.float()), 1)
    a, b, kept = floats.split_with_sizes([half, half, passed], -1)
    c, s = cosines[:, None, :half].float(), sines[:, None, :half].float()
    expected = torch.cat((a * c - b * s, b * c + a * s, kept), -1)
    size = torch.cat((a.abs() + b.abs(), a.abs() + b.abs(), kept.abs()), -1)
    assert_close(out[:, :-rest].view(rows, -1, width), expected, 2 * size)


@given(COUNTS, WIDTHS, st.sampled_from(ACTS))
def test_gate_lets_through(fused: FusedKernels, rows: int, width: int, act: str) -> None:
    x = numbers(rows, 2 * width) * 4
    gates, values = torch.split(x.float(), [width, width], -1)
    acted = silu(gates) if act == "silu" else gelu(gates, approximate="tanh")
    assert_close(fused.gate(x, ACTS.index(act)), acted * values)


@given(COUNTS, WIDTHS)
def test_sum_is_torchs(fused: FusedKernels, rows: int, width: int) -> None:
    a, b = numbers(rows, width), numbers(rows, width, seed=1)
    assert torch.equal(fused.sum(a, b), a + b)


def test_gates_far_from_zero_are_all_or_nothing(fused: FusedKernels) -> None:
    x = torch.tensor([[3e38, -3e38, 100.0, -100.0, 1.0, 1.0, 1.0, 1.0]]).bfloat16()
    for act in range(len(ACTS)):
        assert torch.allclose(fused.gate(x, act).float(), x[:, :4].float().clamp(min=0), atol=1e-6)


def test_what_is_not_finite_stays_in_its_row(fused: FusedKernels) -> None:
    x = numbers(3, 64)
    x[1, 5] = torch.nan
    for out in (
        fused.norm(x.clone(), scale_of(64, 0)),
        fused.gate(x, 0),
        fused.sum(x, x),
    ):
        assert out[1].isnan().any() and out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("rows", [7, 200])
def test_rows_are_the_same_alone_and_on_any_number_of_threads(
    fused: FusedKernels, rows: int
) -> None:
    x, scale = numbers(rows, 896), scale_of(896, 0)
    together = [fused.norm(x, scale), fused.gate(x, 0), fused.sum(x, x)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for row in range(rows):
        one = x[row : row + 1]
        alone = [fused.norm(one, scale), fused.gate(one, 0), fused.sum(one, one)]
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))
    torch.set_num_threads(threads)


def test_library_without_them_has_none() -> None:
    assert bind_fused(ctypes.CDLL(None), "avx512") is None
