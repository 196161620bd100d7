"""What stands between the linear layers against the same formulas in torch's floats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.decoder.fused import (
    ACTIVATIONS,
    NORM_KINDS,
    HeadLayout,
    bind_fused,
)
from quire.models.native.library import ISAS
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.native.layer_formulas import Made, gated, normed, roped
from tests.models.rounding import assert_within

COUNTS = st.integers(1, 40)
WIDTHS = st.one_of(st.integers(1, 100), st.sampled_from((15, 16, 17, 64, 896)))


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
    assert_within(out[:, :-rest].view(rows, -1, width), roped(before, heads, cos, sin))


@given(COUNTS, WIDTHS, st.sampled_from(ACTIVATIONS))
def test_gate_lets_through(made: Made, rows: int, width: int, act: str) -> None:
    x = made.numbers(rows, 2 * width) * 4
    assert_within(made.fused.gate(x, ACTIVATIONS.index(act)), gated(x, act))


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
