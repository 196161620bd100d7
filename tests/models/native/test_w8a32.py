"""Float32 products over weights in bytes against float64 ones of what the bytes say, by every
instruction set."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.library import ISAS
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from quire.models.native.linear.quantised.w8a32 import PANEL_ROWS, W8A32Kernel, bind_w8a32
from tests.instructions import library_of
from tests.models.rounding import Exact, assert_within, linear_exactly, unit
from tests.rounding import compounded

LEAST = 2.0**-100
"""Rows of less than this are zeros."""
HALF_STEP = 0.5 + 127 * compounded(4, unit(torch.float32))
"""A number may be 127 steps large: what it is of them, and what they are, is rounded four times."""
EDGES = (1, 31, 32, 33, 63, 64, 65, 255, 256, 257)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from(EDGES))
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from((48, 49, 126, 127, 260)))
SHAPES = st.tuples(COUNTS, WIDTHS, WIDTHS)
"""Rows, columns and depth of a product: m, n and k."""
EXPONENTS = st.sampled_from((-30, -12, 0, 12))


@pytest.fixture(scope="module", params=ISAS)
def kernel(request: pytest.FixtureRequest) -> W8A32Kernel:
    return bind_w8a32(library_of(request.param))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(shape=SHAPES, has_bias=st.booleans(), seed=st.integers(0, 99))
def test_product_is_that_of_what_the_bytes_say(
    kernel: W8A32Kernel, shape: tuple[int, int, int], has_bias: bool, seed: int
) -> None:
    m, n, k = shape
    x, packed = numbers(m, k, seed=seed), kernel.pack(numbers(n, k, seed=seed + 1))
    weight = kernel.unpack(packed)
    bias = numbers(n, seed=seed + 2) if has_bias else None
    y = kernel.linear(x, packed, bias)
    assert y.dtype == torch.float32
    roundings = k + 3  # a sum's, of the scale that it is multiplied by, here and in `unpack`, bias
    exact = linear_exactly(x, weight, bias, num_roundings=roundings, dtype=torch.float32)
    assert_within(y, exact)


@given(m=COUNTS, n=WIDTHS, k=WIDTHS, has_bias=st.booleans())
def test_row_has_the_same_product_alone_and_in_company(
    kernel: W8A32Kernel, m: int, n: int, k: int, has_bias: bool
) -> None:
    x, weight = numbers(m, k), kernel.pack(numbers(n, k, seed=1))
    bias = numbers(n, seed=2) if has_bias else None
    alone = [kernel.linear(row[None], weight, bias) for row in x]
    assert torch.equal(kernel.linear(x, weight, bias), torch.cat(alone))


@pytest.mark.parametrize("m", [1, 7, 49, 300])
def test_product_is_the_same_on_any_number_of_threads(
    kernel: W8A32Kernel, threads: int, m: int
) -> None:
    x, weight = numbers(m, 70), kernel.pack(numbers(1000, 70, seed=1))
    shared = kernel.linear(x, weight, None)
    torch.set_num_threads(1)
    assert torch.equal(shared, kernel.linear(x, weight, None))


@given(n=WIDTHS, k=WIDTHS, exponent=EXPONENTS, data=st.data())
def test_weight_is_within_half_a_step_in_a_byte_each(
    kernel: W8A32Kernel, n: int, k: int, exponent: int, data: st.DataObject
) -> None:
    weight = numbers(n, k) * 10.0**exponent
    packed = kernel.pack(weight)
    unpacked = kernel.unpack(packed)
    steps = weight.double().abs().amax(-1, keepdim=True) / 127
    assert_within(unpacked, Exact(weight.double(), HALF_STEP * steps + LEAST))
    assert packed.packed.nbytes == -(-n // PANEL_ROWS) * PANEL_ROWS * (k + 4)
    indices = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9)))
    assert torch.equal(kernel.rows(indices, packed), unpacked[indices])


@given(n=WIDTHS, k=WIDTHS, exponent=EXPONENTS)
def test_bytes_are_those_that_others_multiply(
    kernel: W8A32Kernel, w8a8_kernel: W8A8Kernel, n: int, k: int, exponent: int
) -> None:
    weight = numbers(n, k) * 10.0**exponent
    unpacked = kernel.unpack(kernel.pack(weight))
    assert torch.equal(unpacked, w8a8_kernel.unpack(w8a8_kernel.pack(weight)))


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), k=WIDTHS)
def test_joined_weights_are_one_and_stay_what_they_were(
    kernel: W8A32Kernel, sizes: list[int], k: int
) -> None:
    weights = [numbers(PANEL_ROWS * size, k, seed=i) for i, size in enumerate(sizes)]
    parts = [kernel.pack(weight) for weight in weights]
    before = [kernel.unpack(part) for part in parts]
    whole = kernel.join(parts)
    assert whole is not None
    assert torch.equal(kernel.unpack(whole), torch.cat(before))
    for part, weight in zip(parts, before, strict=True):
        assert torch.equal(kernel.unpack(part), weight)
    assert kernel.join([kernel.pack(numbers(31, k)), kernel.pack(numbers(32, k))]) is None


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_in_a_row_makes_its_column_nan_and_no_other(
    kernel: W8A32Kernel, bad: float
) -> None:
    x, weight = numbers(60, 33), numbers(40, 33, seed=1)
    before = kernel.linear(x, kernel.pack(weight), None)
    weight[7, 3] = bad
    out = kernel.linear(x, kernel.pack(weight), None)
    assert out[:, 7].isnan().all()
    out[:, 7] = before[:, 7]
    assert torch.equal(out, before)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_is_not_finite_in_x_stays_in_its_row(kernel: W8A32Kernel, bad: float) -> None:
    x, weight = numbers(3, 33), kernel.pack(numbers(20, 33, seed=1))
    x[1, 32] = bad
    out = kernel.linear(x, weight, None)
    assert out[[0, 2]].isfinite().all() and not out[1].isfinite().any()


def test_what_does_not_fit_is_refused(kernel: W8A32Kernel) -> None:
    weight = kernel.pack(numbers(5, 20))
    assert kernel.linear(numbers(0, 20), weight, None).shape == (0, 5)
    assert kernel.linear(numbers(2, 3, 20), weight, None).shape == (2, 3, 5)
    with pytest.raises(IndexError, match="5 rows"):
        kernel.rows(torch.tensor([5]), weight)
    for x in (numbers(1, 21), numbers(1, 20).bfloat16()):
        with pytest.raises(ValueError, match="must be"):
            kernel.linear(x, weight, None)
    with pytest.raises(ValueError, match="must be float32"):
        kernel.pack(numbers(5, 20).bfloat16())
    assert not kernel.takes(numbers(4, 4).bfloat16())
