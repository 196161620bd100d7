"""Every implementation of the kernels between linear layers, against the same formulas in torch's
floats: C++ by each instruction set, and Triton in its interpreter."""

import importlib.util

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.decoder.fused import ACTIVATIONS, NORM_KINDS, HeadLayout, bind_fused
from quire.models.native.library import ISAS
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.layers.layer_formulas import Made, gated, normed, opened, roped
from tests.models.rounding import assert_within

FEW = st.integers(1, 3)
TILES = st.sampled_from((1, 5, 64, 100, 1100))
"""Of one tile and of several: an interpreter takes long for more of them."""
CASES = [
    *((isa, torch.float32) for isa in ISAS),
    *((isa, torch.bfloat16) for isa in ISAS_WITH_PRODUCTS),
    *(("triton", dtype) for dtype in (torch.float32, torch.float16)),
]
NATIVE = [case for case in CASES if case[0] != "triton"]


def name_of(case: tuple[str, torch.dtype]) -> str:
    return f"{case[0]} {case[1]}"


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def made(request: pytest.FixtureRequest) -> Made:
    name, dtype = request.param
    if name != "triton":
        made = Made(bind_fused(library_of(name)), dtype)
    elif importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    else:
        from quire.models.layers.triton.triton_layers import TritonLayers

        made = Made(TritonLayers(), dtype, FEW, TILES)
    assert dtype in made.fused.dtypes
    return made


native = pytest.mark.parametrize("made", NATIVE, ids=name_of, indirect=True)


@given(
    st.data(),
    st.sampled_from(range(len(NORM_KINDS))),
    st.sampled_from((1.0, 2.0**-12, 2.0**20)),
    st.booleans(),
)
def test_norm_is_the_formula(
    made: Made, data: st.DataObject, kind: int, size: float, is_sum: bool
) -> None:
    """The norm of a sum leaves the sum in place of what was to be added to."""
    rows, width = data.draw(made.rows), data.draw(made.widths)
    x, scale = made.numbers(rows, width), made.scale_of(width, kind)
    x *= 1.0 if x.dtype is torch.float16 else size
    added = made.numbers(rows, width, seed=2) if is_sum else None
    sums = x.clone() if added is None else x + added
    found = made.fused.norm(x, scale) if added is None else made.fused.norm(x, scale, added)
    assert_within(found, normed(sums, scale))
    assert torch.equal(x, sums)


@given(
    data=st.data(),
    num_heads=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    sizes=st.tuples(st.integers(1, 40), st.integers(0, 20)),
    kind=st.sampled_from((None, 0, 1)),
)
def test_rope_turns_the_halves_of_each_head(
    made: Made,
    *,
    data: st.DataObject,
    num_heads: tuple[int, int],
    sizes: tuple[int, int],
    kind: int | None,
) -> None:
    (num_query, num_key), (half, passed), rows = num_heads, sizes, data.draw(made.rows)
    width = 2 * half + passed
    norms = () if kind is None else [made.scale_of(width, kind, seed=seed) for seed in (1, 3)]
    heads = HeadLayout(num_query, num_key, width, *norms)
    x, rest = made.numbers(rows, (num_query + num_key + 2) * width), 2 * width
    angles = torch.randn(rows, half, generator=torch.Generator().manual_seed(4)).repeat(1, 2)
    cos, sin = angles.cos().to(made.dtype), angles.sin().to(made.dtype)
    out = x.clone()
    made.fused.rope(out, heads, cos, sin)
    assert torch.equal(out[:, -rest:], x[:, -rest:])
    before = x[:, :-rest].view(rows, -1, width)
    assert_within(out[:, :-rest].view(rows, -1, width), roped(before, heads, cos, sin))


@given(st.data(), st.sampled_from(ACTIVATIONS))
def test_gate_lets_through(made: Made, data: st.DataObject, act: str) -> None:
    x = made.numbers(data.draw(made.rows), 2 * data.draw(made.widths)) * 4
    assert_within(made.fused.gate(x, ACTIVATIONS.index(act)), gated(x, act))


@given(st.data(), st.integers(1, 3), st.sampled_from((1, 16, 40, 256)))
def test_heads_are_gated_by_sigmoids(
    made: Made, data: st.DataObject, num_heads: int, head_size: int
) -> None:
    """Gates lie beside what is no gate, as among the projections of attention."""
    num_tokens = data.draw(made.rows)
    x = made.numbers(num_tokens, num_heads * head_size).view(num_tokens, num_heads, head_size)
    beside = made.numbers(num_tokens, num_heads * 2 * head_size + 3, seed=1) * 4
    gates = torch.unflatten(beside[:, 3:], 1, (num_heads, 2, head_size))[:, :, 1]
    found = x.clone()
    made.fused.gate_heads(found, gates)
    assert_within(found, opened(x, gates))


def test_gates_far_from_zero_are_all_or_nothing(made: Made) -> None:
    most = torch.finfo(made.dtype).max
    x = torch.tensor([[most, -most, 100.0, -100.0, 1.0, 1.0, 1.0, 1.0]]).to(made.dtype)
    for act in range(len(ACTIVATIONS)):
        error = made.fused.gate(x, act).double() - x[:, :4].clamp(min=0).double()
        assert error.abs().max() <= torch.finfo(made.dtype).tiny


@given(st.data())
def test_sum_is_torchs(made: Made, data: st.DataObject) -> None:
    shape = data.draw(made.rows), data.draw(made.widths)
    a, b = made.numbers(*shape), made.numbers(*shape, seed=1)
    assert torch.equal(made.fused.sum(a, b), a + b)


@native
def test_what_is_not_finite_stays_in_its_row(made: Made) -> None:
    x = made.numbers(3, 64)
    x[1, 5] = torch.nan
    for out in (
        made.fused.norm(x.clone(), made.scale_of(64, 0)),
        made.fused.gate(x, 0),
        made.fused.sum(x, x),
    ):
        assert out[1].isnan().any() and out[[0, 2]].isfinite().all()


@native
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
