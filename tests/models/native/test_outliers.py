"""Outliers of the kernels of quantised weights: columns in bfloat16 beside others in bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.linear.quantised.w8a8 import (
    MIN_COLUMNS,
    NUM_OUTLIERS,
    W8A8Kernel,
    bind_w8a8,
)
from quire.models.native.packed_weight import PackedWeight
from quire.models.weights.weight_kernel import WeightOutline
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.native.quantised_rows import (
    COUNTS,
    DTYPES,
    EXPONENTS,
    GROUP,
    numbers,
    quantised,
    sums_error,
)
from tests.models.rounding import Exact, assert_within, in_dtype, unit

SOME_ROWS = st.integers(1, 70)
COLUMNS = st.integers(MIN_COLUMNS, 700)


def spread(k: int, seed: int) -> Tensor:
    """Sizes of columns: all of them different, from 1 to k."""
    return torch.randperm(k, generator=torch.Generator().manual_seed(seed)).float() + 1


def outliers(sizes: Tensor) -> Tensor:
    return sizes > len(sizes) - NUM_OUTLIERS


def packed(byte_kernel: W8A8Kernel, n: int, sizes: Tensor, dtype: torch.dtype) -> PackedWeight:
    return byte_kernel.pack_for(numbers(n, len(sizes), dtype=dtype, seed=1), sizes)


@given(m=COUNTS, shape=st.tuples(SOME_ROWS, COLUMNS), dtype=DTYPES, data=st.data())
def test_product_is_that_of_the_packed_numbers(
    byte_kernel: W8A8Kernel, m: int, shape: tuple[int, int], dtype: torch.dtype, data: st.DataObject
) -> None:
    """Outliers are as large as may be: they coarsen nothing beside them."""
    n, k = shape
    seed, factor = data.draw(st.integers(0, 99)), 10.0 ** data.draw(EXPONENTS)
    sizes = spread(k, seed)
    is_outlier = outliers(sizes)
    x = numbers(m, k, dtype=dtype, seed=seed)
    x[:, is_outlier] *= factor
    weight = numbers(n, k, dtype=dtype, seed=seed + 1)
    rows = byte_kernel.unpack(byte_kernel.pack_for(weight.float(), sizes)).double()
    exact, terms = torch.zeros(2, m, n, dtype=torch.float64)
    for first in range(0, k, GROUP):
        part = slice(first, first + GROUP)
        q = quantised(x[:, part].masked_fill(is_outlier[part], 0))
        exact += q.scales * (q.numbers @ rows[:, part].T)
        terms += q.scales * (q.numbers.abs() @ rows[:, part].abs().T)
    apart, ours = x[:, is_outlier].bfloat16().double(), rows[:, is_outlier]
    exact, terms = exact + apart @ ours.T, terms + apart.abs() @ ours.abs().T
    # A row's numbers were rounded once to be shares of a scale; sums begin with those of outliers.
    error = sums_error(x, terms) + (NUM_OUTLIERS + 2) * unit(torch.float32) * terms
    found = byte_kernel.linear(x, byte_kernel.pack_for(weight, sizes), None)
    assert_within(found, in_dtype(Exact(exact, error), dtype))


@given(n=SOME_ROWS, k=COLUMNS, dtype=DTYPES, seed=st.integers(0, 99))
def test_outliers_come_back_as_bfloat16(
    byte_kernel: W8A8Kernel, n: int, k: int, dtype: torch.dtype, seed: int
) -> None:
    """They are shares of their row's scale: two roundings, and that of the result."""
    sizes = spread(k, seed)
    is_outlier = outliers(sizes)
    weight = numbers(n, k, dtype=dtype, seed=seed)
    weight[:, is_outlier] *= 1000
    found = byte_kernel.unpack(byte_kernel.pack_for(weight, sizes))
    large = weight[:, is_outlier].double()
    error = large.abs() * (unit(torch.bfloat16) + 4 * unit(torch.float32))
    assert_within(found[:, is_outlier], in_dtype(Exact(large, error), dtype))
    without = byte_kernel.unpack(byte_kernel.pack(weight.masked_fill(is_outlier, 0)))
    if byte_kernel.num_bits == 8:
        assert torch.equal(found[:, ~is_outlier], without[:, ~is_outlier])


@given(m=COUNTS, n=SOME_ROWS, k=COLUMNS, dtype=DTYPES)
def test_row_has_the_same_product_alone_and_in_company(
    byte_kernel: W8A8Kernel, m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    x, weight = numbers(m, k, dtype=dtype), packed(byte_kernel, n, spread(k, 0), dtype)
    together = byte_kernel.linear(x, weight, None)
    alone = [byte_kernel.linear(row[None], weight, None) for row in x]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_and_dot_products_sum_alike(isa: str, dtype: torch.dtype) -> None:
    """Whatever the instruction set, and however many the rows."""
    x, first = numbers(70, 600, dtype=dtype), bind_w8a8(library_of(ISAS_WITH_PRODUCTS[0]))
    here = bind_w8a8(library_of(isa))
    assert first is not None and here is not None
    found = [
        each.linear(x, packed(each, 90, spread(600, 0), dtype), None) for each in (first, here)
    ]
    assert torch.equal(*found)


@given(m=COUNTS, ns=st.lists(st.integers(1, 3), min_size=2, max_size=3), k=COLUMNS)
def test_weights_of_the_same_outliers_are_joined(
    byte_kernel: W8A8Kernel, m: int, ns: list[int], k: int
) -> None:
    x = numbers(m, k)
    weights = [packed(byte_kernel, 16 * n, spread(k, 0), torch.bfloat16) for n in ns]
    apart = [byte_kernel.linear(x, weight, None) for weight in weights]
    joined = byte_kernel.join(weights)
    assert joined is not None
    assert torch.equal(byte_kernel.linear(x, joined, None), torch.cat(apart, dim=1))
    assert torch.equal(byte_kernel.linear(x, weights[0], None), apart[0])


def test_weights_of_different_outliers_are_not_joined(byte_kernel: W8A8Kernel) -> None:
    one, other = (packed(byte_kernel, 16, spread(300, seed), torch.bfloat16) for seed in (0, 1))
    assert byte_kernel.join([one, other]) is None
    assert byte_kernel.join([one, byte_kernel.pack(numbers(16, 300))]) is None
    assert byte_kernel.join([byte_kernel.pack(numbers(16, 300)), one]) is None


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(
    byte_kernel: W8A8Kernel, bad: float, dtype: torch.dtype
) -> None:
    sizes = spread(333, 0)
    column = int(sizes.argmax())
    x, weight = numbers(9, 333, dtype=dtype), numbers(20, 333, dtype=dtype, seed=1)
    before = byte_kernel.linear(x, byte_kernel.pack_for(weight, sizes), None)
    x[1, column], weight[7, column] = bad, bad
    out = byte_kernel.linear(x, byte_kernel.pack_for(weight, sizes), None)
    assert out[1].isnan().all() and out[:, 7].isnan().all()
    out[1], out[:, 7] = before[1], before[:, 7]
    assert torch.equal(out, before)


def test_rows_of_outliers_alone_are_multiplied(byte_kernel: W8A8Kernel) -> None:
    sizes = spread(300, 0)
    weight = numbers(20, 300, dtype=torch.float32).masked_fill(~outliers(sizes), 0)
    x = numbers(3, 300, dtype=torch.float32, seed=1).bfloat16().float()
    found = byte_kernel.linear(x, byte_kernel.pack_for(weight, sizes), None)
    exact, terms = (each(x.double()) @ each(weight.double()).T for each in (torch.clone, torch.abs))
    error = terms * (unit(torch.bfloat16) + 2.0**-20)
    assert_within(found, in_dtype(Exact(exact, error), torch.float32))


@given(n=SOME_ROWS, k=st.integers(1, 700), dtype=DTYPES)
def test_weight_takes_the_bytes_that_are_planned(
    byte_kernel: W8A8Kernel, n: int, k: int, dtype: torch.dtype
) -> None:
    weight = packed(byte_kernel, n, spread(k, 0), dtype)
    assert (weight.outliers is None) == (k < MIN_COLUMNS)
    assert weight.packed.nbytes == byte_kernel.planned_bytes(WeightOutline(n, k, dtype, None))
