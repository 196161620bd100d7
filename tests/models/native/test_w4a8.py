"""The int4 linear kernel against exact sums of the integers that it says it multiplies, and its
choice of nibbles against what any choice has to keep to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.linear.quantised.w4a8 import W4A8Kernel, bind_w4a8
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.native.quantised_rows import (
    DTYPES,
    EXPONENTS,
    GROUP,
    LEAST,
    SHAPES,
    WIDTHS,
    numbers,
    quantised,
    sums_error,
)
from tests.models.rounding import Exact, assert_within, in_dtype, unit

RUN = 32
FRACTION = 4
"""The bits behind the point of a run's step and begin."""
REACH = 119
"""The byte of a row's largest number."""


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def kernel(request: pytest.FixtureRequest) -> W4A8Kernel:
    bound = bind_w4a8(library_of(request.param))
    assert bound is not None
    return bound


def unpacked(kernel: W4A8Kernel, weight: Tensor) -> Tensor:
    """Return the numbers that a weight is packed as, in float32: its dtype does not change them."""
    return kernel.unpack(kernel.pack(weight.float()))


def assert_product(
    kernel: W4A8Kernel, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> None:
    rows = unpacked(kernel, weight).double()
    exact = torch.zeros(len(x), len(weight), dtype=torch.float64)
    sizes = torch.zeros_like(exact)
    for first in range(0, x.shape[1], GROUP):
        q, part = quantised(x[:, first : first + GROUP]), rows[:, first : first + GROUP]
        exact += q.scales * (q.numbers @ part.T)
        sizes += q.scales * (q.numbers.abs() @ part.abs().T)
    if bias is not None:
        exact, sizes = exact + bias.double(), sizes + bias.double().abs()
    error = sums_error(x, sizes) + unit(torch.float32) * sizes  # a row's numbers were rounded once
    found = kernel.linear(x, kernel.pack(weight), bias)
    assert found.dtype == x.dtype
    assert_within(found, in_dtype(Exact(exact, error), x.dtype))


@given(shape=SHAPES, dtype=DTYPES, data=st.data())
def test_product_is_that_of_the_packed_numbers(
    kernel: W4A8Kernel, shape: tuple[int, int, int], dtype: torch.dtype, data: st.DataObject
) -> None:
    m, n, k = shape
    seed = data.draw(st.integers(0, 99))
    x, weight = (numbers(each, k, dtype=dtype, seed=seed + each) for each in (m, n))
    x *= 10.0 ** data.draw(EXPONENTS)
    weight *= 10.0 ** data.draw(EXPONENTS)
    x[data.draw(st.integers(0, m - 1))] = 0
    weight[data.draw(st.integers(0, n - 1))] = 0
    bias = numbers(n, dtype=dtype, seed=seed) if data.draw(st.booleans()) else None
    assert_product(kernel, x, weight, bias)


@pytest.mark.parametrize(("m", "n", "k"), [(257, 700, 300), (520, 300, 2048), (1030, 33, 4096)])
def test_product_of_many_rows_is_that_of_each(kernel: W4A8Kernel, m: int, n: int, k: int) -> None:
    assert_product(kernel, numbers(m, k), numbers(n, k, seed=1), numbers(n, seed=2))


@given(n=st.integers(1, 20), k=WIDTHS, seed=st.integers(0, 99), exponent=EXPONENTS)
def test_numbers_of_sixteen_levels_come_back(
    kernel: W4A8Kernel, n: int, k: int, seed: int, exponent: int
) -> None:
    """As Q4_1 has them: each run with a step and a begin of its own, its lowest and its highest
    level among its numbers."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 16, (n, k), generator=generator).float()
    levels[:, ::RUN], levels[:, 1::RUN] = 0, 15
    runs = -(-k // RUN)
    steps, begins = (
        torch.rand(n, runs, generator=generator),
        torch.randn(n, runs, generator=generator),
    )
    spread = (each.repeat_interleave(RUN, 1)[:, :k] for each in (steps + 0.1, begins))
    step, begin = spread
    weight = (levels * step + begin) * 10.0**exponent
    assert_within(unpacked(kernel, weight), Exact(weight.double(), a_byte(weight) + LEAST))


def a_byte(weight: Tensor) -> Tensor:
    """The step, the begin and the byte itself are rounded: by half of their last bit, of which the
    step counts fifteen times, and numbers by what float32 makes of these."""
    rounded = ((15 + 1) / 2**FRACTION + 1) / 2 * (1 + 2.0**-10)
    return weight.double().abs().amax(-1, keepdim=True).div(REACH).mul(rounded)


@given(n=WIDTHS, k=WIDTHS, seed=st.integers(0, 99), exponent=EXPONENTS)
def test_error_of_a_run_is_no_more_than_steps_explain(
    kernel: W4A8Kernel, n: int, k: int, seed: int, exponent: int
) -> None:
    """Fifteen steps from the lowest number to the highest round each by half of one at most. What
    is taken is no worse, weighted by size, but for the rounding of what is stored."""
    weight = numbers(n, k, dtype=torch.float32, seed=seed) * 10.0**exponent
    left, byte = (unpacked(kernel, weight) - weight).double(), a_byte(weight)[:, 0]
    for first in range(0, k, RUN):
        part = weight[:, first : first + RUN].double()
        counted = part.abs() + part.abs().mean(-1, keepdim=True)
        error = (counted * left[:, first : first + RUN] ** 2).sum(-1).sqrt()
        half_step = (part.amax(-1) - part.amin(-1)) / 30
        bound = counted.sum(-1).sqrt() * (half_step * (1 + 2.0**-10) + byte + LEAST)
        assert (error <= bound).all()


def test_weight_takes_four_bits_a_number_and_three_bytes_a_run(kernel: W4A8Kernel) -> None:
    packed = kernel.pack(numbers(160, 1024)).packed
    assert packed.nbytes == 160 * (1024 // 2 + 1024 // RUN * 3 + 4)


def test_sets_without_its_products_have_no_kernel() -> None:
    assert bind_w4a8(library_of("portable")) is None
