"""The int8 linear kernel against exact sums of the integers that it says it multiplies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.linear.quantised.w8a8 import W8A8Kernel, bind_w8a8
from tests.instructions import library_of
from tests.models.native.quantised_rows import (
    COUNTS,
    DTYPES,
    EXPONENTS,
    GROUP,
    HALF_STEP,
    LEAST,
    SHAPES,
    WIDTHS,
    numbers,
    quantised,
    sums_error,
)
from tests.models.rounding import Exact, assert_within, in_dtype


def expected(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The product of what is quantised, and that of absolute values."""
    w = quantised(weight)
    y = torch.zeros(len(x), len(weight), dtype=torch.float64)
    sizes = torch.zeros_like(y)
    for first in range(0, x.shape[1], GROUP):
        q, rows = quantised(x[:, first : first + GROUP]), w.numbers[:, first : first + GROUP]
        y += q.scales * (q.numbers @ rows.T)
        sizes += q.scales * (q.numbers.abs() @ rows.abs().T)
    return y * w.scales.T, sizes * w.scales.T


def assert_product(
    w8a8_kernel: W8A8Kernel, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> None:
    given_y = w8a8_kernel.linear(x, w8a8_kernel.pack(weight), bias)
    exact, sizes = expected(x, weight)
    if bias is not None:
        exact, sizes = exact + bias.double(), sizes + bias.double().abs()
    assert given_y.dtype == x.dtype
    assert_within(given_y, in_dtype(Exact(exact, sums_error(x, sizes)), x.dtype))


@given(shape=SHAPES, dtype=DTYPES, data=st.data())
def test_product_is_that_of_the_quantised_numbers(
    w8a8_kernel: W8A8Kernel, shape: tuple[int, int, int], dtype: torch.dtype, data: st.DataObject
) -> None:
    m, n, k = shape
    seed = data.draw(st.integers(0, 99))
    x, weight = (numbers(each, k, dtype=dtype, seed=seed + each) for each in (m, n))
    x *= 10.0 ** data.draw(EXPONENTS)
    weight *= 10.0 ** data.draw(EXPONENTS)
    x[data.draw(st.integers(0, m - 1))] = 0
    weight[data.draw(st.integers(0, n - 1))] = 0
    bias = numbers(n, dtype=dtype, seed=seed) if data.draw(st.booleans()) else None
    assert_product(w8a8_kernel, x, weight, bias)


@given(m=COUNTS, n=WIDTHS, k=WIDTHS, dtype=DTYPES)
def test_product_is_about_that_of_the_numbers(
    w8a8_kernel: W8A8Kernel, m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    """Each factor is off by half a 127th of the largest beside it at most."""
    x, weight = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype, seed=1)
    y = w8a8_kernel.linear(x, w8a8_kernel.pack(weight), None)
    a, b = x.double(), weight.double()
    half_a, half_b = (HALF_STEP / 127 * each.abs().amax(-1, keepdim=True) for each in (a, b))
    steps = half_a * b.abs().sum(-1) + half_b.T * (a.abs().sum(-1, keepdim=True) + k * half_a)
    error = steps + sums_error(x, a.abs() @ b.abs().T + steps)
    assert_within(y, in_dtype(Exact(a @ b.T, error), dtype))


@pytest.mark.parametrize(("m", "n", "k"), [(257, 700, 300), (520, 300, 2048), (1030, 33, 4096)])
def test_product_of_many_rows_is_that_of_each(
    w8a8_kernel: W8A8Kernel, m: int, n: int, k: int
) -> None:
    x, weight, bias = numbers(m, k), numbers(n, k, seed=1), numbers(n, seed=2)
    assert_product(w8a8_kernel, x, weight, bias)
    packed = w8a8_kernel.pack(weight)
    together = w8a8_kernel.linear(x, packed, None)
    alone = [w8a8_kernel.linear(row[None], packed, None) for row in x[::97]]
    assert torch.equal(together[::97], torch.cat(alone))


@given(n=WIDTHS, k=WIDTHS, dtype=DTYPES, exponent=EXPONENTS)
def test_unpacked_weight_is_within_half_a_step(
    w8a8_kernel: W8A8Kernel, n: int, k: int, dtype: torch.dtype, exponent: int
) -> None:
    weight = numbers(n, k, dtype=dtype) * 10.0**exponent
    unpacked = w8a8_kernel.unpack(w8a8_kernel.pack(weight))
    steps = weight.double().abs().amax(-1, keepdim=True) / 127
    assert unpacked.dtype == dtype
    assert_within(unpacked, in_dtype(Exact(weight.double(), HALF_STEP * steps + LEAST), dtype))


def test_outlier_coarsens_only_its_group(w8a8_kernel: W8A8Kernel) -> None:
    x, weight = numbers(1, 1024), numbers(64, 1024, seed=1)
    weight[:, :GROUP] = 0
    packed = w8a8_kernel.pack(weight)
    before = w8a8_kernel.linear(x, packed, None)
    x[0, 3] = 1e6
    assert torch.equal(w8a8_kernel.linear(x, packed, None), before)


def test_weight_takes_a_byte_and_a_scale_for_each_row(w8a8_kernel: W8A8Kernel) -> None:
    packed = w8a8_kernel.pack(numbers(160, 1000)).packed
    assert packed.nbytes == 160 * (1000 + 4)
    assert packed.dtype == torch.bfloat16


def test_leading_dimensions_are_kept(w8a8_kernel: W8A8Kernel) -> None:
    x, weight = numbers(2, 3, 20), w8a8_kernel.pack(numbers(5, 20, seed=1))
    out = w8a8_kernel.linear(x, weight, None)
    assert out.shape == (2, 3, 5)
    assert torch.equal(out.view(6, 5), w8a8_kernel.linear(x.view(6, 20), weight, None))
    assert w8a8_kernel.linear(numbers(0, 20), weight, None).shape == (0, 5)


def test_unaligned_and_strided_inputs_are_read_right(w8a8_kernel: W8A8Kernel) -> None:
    weight, store = numbers(40, 31, seed=1), numbers(10 * 31 + 1)
    assert_product(w8a8_kernel, store[1:].view(10, 31), weight)
    assert_product(w8a8_kernel, numbers(31, 10).T, weight)
    assert_product(w8a8_kernel, numbers(10, 62)[:, ::2], weight.T.contiguous().T)


@pytest.mark.parametrize("index", [-1, 5])
def test_row_that_is_not_there_is_refused(w8a8_kernel: W8A8Kernel, index: int) -> None:
    with pytest.raises(IndexError, match="5 rows"):
        w8a8_kernel.rows(torch.tensor([index]), w8a8_kernel.pack(numbers(5, 20)))


@pytest.mark.parametrize("x", [torch.zeros(1, 20), numbers(1, 21)], ids=["dtype", "width"])
def test_input_that_does_not_fit_is_refused(w8a8_kernel: W8A8Kernel, x: Tensor) -> None:
    weight = w8a8_kernel.pack(numbers(5, 20))
    with pytest.raises(ValueError, match="must be"):
        w8a8_kernel.linear(x, weight, None)


def test_weight_of_another_dtype_is_refused(w8a8_kernel: W8A8Kernel) -> None:
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        w8a8_kernel.pack(torch.zeros(5, 20, dtype=torch.float16))


def test_sets_without_its_products_have_no_kernel() -> None:
    assert bind_w8a8(library_of("portable")) is None
