"""The packed linear kernel against float32 products of the same bfloat16 numbers."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.linear import LinearKernel, PackedWeight, bind_linear

ROUNDED = 2.0**-8
"""What rounding to bfloat16 may change, relative."""
SUMMED = 2.0**-22
"""What each float sum may change, relative to the sum of absolute products."""

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from((*EDGES, 255, 256, 257, 896)))
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from((64, 97, 200)))


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def assert_product(
    kernel: LinearKernel, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    given_y = kernel.linear(x, kernel.pack(weight), bias)
    exact, sizes = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    if bias is not None:
        exact, sizes = exact + bias.double(), sizes + bias.double().abs()
    allowed = ROUNDED * exact.abs() + SUMMED * x.shape[-1] * sizes
    assert given_y.dtype == torch.bfloat16
    assert ((given_y.double() - exact).abs() <= allowed).all()


@given(m=COUNTS, n=WIDTHS, k=WIDTHS, has_bias=st.booleans(), seed=st.integers(0, 99))
def test_product_is_that_of_the_same_numbers(
    kernel: LinearKernel, m: int, n: int, k: int, has_bias: bool, seed: int
) -> None:
    bias = numbers(n, seed=seed + 2) if has_bias else None
    assert_product(kernel, numbers(m, k, seed=seed), numbers(n, k, seed=seed + 1), bias)


@pytest.mark.parametrize("m", [1, 6, 7, 13, 100])
def test_product_is_the_same_on_any_number_of_threads(
    kernel: LinearKernel, threads: int, m: int
) -> None:
    x, weight = numbers(m, 70), kernel.pack(numbers(1000, 70, seed=1))
    shared = kernel.linear(x, weight, None)
    torch.set_num_threads(1)
    assert torch.equal(shared, kernel.linear(x, weight, None))


@given(m=COUNTS, n=WIDTHS, k=WIDTHS)
def test_row_has_the_same_product_alone_and_in_company(
    kernel: LinearKernel, m: int, n: int, k: int
) -> None:
    x, weight = numbers(m, k), kernel.pack(numbers(n, k, seed=1))
    together = kernel.linear(x, weight, None)
    alone = [kernel.linear(row[None], weight, None) for row in x]
    assert torch.equal(together, torch.cat(alone))


@given(n=WIDTHS, k=WIDTHS)
def test_unpacked_weight_is_the_one_that_was_packed(kernel: LinearKernel, n: int, k: int) -> None:
    weight = numbers(n, k)
    assert torch.equal(kernel.unpack(kernel.pack(weight)), weight)


@given(n=WIDTHS, k=WIDTHS, data=st.data())
def test_rows_are_those_of_the_weight(
    kernel: LinearKernel, n: int, k: int, data: st.DataObject
) -> None:
    weight = numbers(n, k)
    indices = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9)))
    assert torch.equal(kernel.rows(indices, kernel.pack(weight)), weight[indices])


def test_leading_dimensions_are_kept(kernel: LinearKernel) -> None:
    x, weight = numbers(2, 3, 20), kernel.pack(numbers(5, 20, seed=1))
    out = kernel.linear(x, weight, None)
    assert out.shape == (2, 3, 5)
    assert torch.equal(out.view(6, 5), kernel.linear(x.view(6, 20), weight, None))


def test_unaligned_and_strided_inputs_are_read_right(kernel: LinearKernel) -> None:
    weight, store = numbers(40, 31, seed=1), numbers(10 * 31 + 1)
    assert_product(kernel, store[1:].view(10, 31), weight, None)
    assert_product(kernel, numbers(31, 10).T, weight, None)
    assert_product(kernel, numbers(10, 62)[:, ::2], weight.T.contiguous().T, None)


def test_no_rows_give_no_rows(kernel: LinearKernel) -> None:
    weight = kernel.pack(numbers(5, 20))
    assert kernel.linear(numbers(0, 20), weight, None).shape == (0, 5)


def test_infinities_and_nans_stay_in_their_places(kernel: LinearKernel) -> None:
    x, weight = numbers(3, 33), numbers(20, 33, seed=1)
    x[1, 32] = torch.inf
    weight[7, 3] = torch.nan
    out = kernel.linear(x, kernel.pack(weight), None)
    assert out[:, 7].isnan().all()
    rest = torch.cat((out[:, :7], out[:, 8:]), dim=1)
    assert rest[[0, 2]].isfinite().all() and rest[1].isinf().all()


@pytest.mark.parametrize("index", [-1, 5])
def test_row_that_is_not_there_is_refused(kernel: LinearKernel, index: int) -> None:
    with pytest.raises(IndexError, match="5 rows"):
        kernel.rows(torch.tensor([index]), kernel.pack(numbers(5, 20)))


@pytest.mark.parametrize("x", [torch.zeros(1, 20), numbers(1, 21)], ids=["dtype", "width"])
def test_input_that_does_not_fit_is_refused(kernel: LinearKernel, x: torch.Tensor) -> None:
    weight: PackedWeight = kernel.pack(numbers(5, 20))
    with pytest.raises(ValueError, match="must be"):
        kernel.linear(x, weight, None)


def test_library_without_the_functions_gives_no_kernel() -> None:
    assert bind_linear(ctypes.CDLL(None), "avx512") is None
