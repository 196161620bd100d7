"""The kernels of quantised weights: no row of a product depends on its company, on threads, or on
how weights are joined."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from tests.models.native.quantised_rows import COUNTS, DTYPES, WIDTHS, numbers


@given(m=COUNTS, n=WIDTHS, k=WIDTHS, dtype=DTYPES)
def test_row_has_the_same_product_alone_and_in_company(
    byte_kernel: W8A8Kernel, m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    x, weight = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype, seed=1)
    packed = byte_kernel.pack(weight)
    together = byte_kernel.linear(x, packed, None)
    alone = [byte_kernel.linear(row[None], packed, None) for row in x]
    assert torch.equal(together, torch.cat(alone))


@given(m=COUNTS, n=WIDTHS, other=WIDTHS, k=WIDTHS)
def test_matrices_packed_as_one_have_the_same_products(
    byte_kernel: W8A8Kernel, m: int, n: int, other: int, k: int
) -> None:
    x, weights = numbers(m, k), [numbers(n, k, seed=1), numbers(other, k, seed=2)]
    together = byte_kernel.linear(x, byte_kernel.pack(torch.cat(weights)), None)
    apart = [byte_kernel.linear(x, byte_kernel.pack(weight), None) for weight in weights]
    assert torch.equal(together, torch.cat(apart, dim=1))


@pytest.mark.parametrize("m", [1, 6, 7, 13, 100])
def test_product_is_the_same_on_any_number_of_threads(
    byte_kernel: W8A8Kernel, threads: int, m: int
) -> None:
    x, weight = numbers(m, 300), byte_kernel.pack(numbers(1000, 300, seed=1))
    shared = byte_kernel.linear(x, weight, None)
    torch.set_num_threads(1)
    assert torch.equal(shared, byte_kernel.linear(x, weight, None))


@given(n=WIDTHS, k=WIDTHS, data=st.data())
def test_rows_are_those_of_the_unpacked_weight(
    byte_kernel: W8A8Kernel, n: int, k: int, data: st.DataObject
) -> None:
    packed = byte_kernel.pack(numbers(n, k))
    indices = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9)))
    assert torch.equal(byte_kernel.rows(indices, packed), byte_kernel.unpack(packed)[indices])


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(
    byte_kernel: W8A8Kernel, bad: float, dtype: torch.dtype
) -> None:
    x, weight = numbers(9, 333, dtype=dtype), numbers(20, 333, dtype=dtype, seed=1)
    before = byte_kernel.linear(x, byte_kernel.pack(weight), None)
    x[1, 332], weight[7, 3] = bad, bad
    out = byte_kernel.linear(x, byte_kernel.pack(weight), None)
    assert out[1].isnan().all() and out[:, 7].isnan().all()
    out[1], out[:, 7] = before[1], before[:, 7]
    assert torch.equal(out, before)
