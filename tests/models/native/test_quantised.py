"""What the formats of fewer bits have of their own: which integers they choose, for which columns
more bits, and who multiplies the same numbers."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.library import ISAS
from quire.models.native.linear.quantised.grouped import bind_grouped
from quire.models.native.linear.quantised.grouping import bind_grouping
from quire.models.native.linear.quantised.w4a8 import W4A8Kernel, bind_w4a8
from quire.models.native.linear.quantised.w8a8 import (
    MIN_COLUMNS,
    NUM_OUTLIERS,
    W8A8Kernel,
    bind_w8a8,
)
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from quire.models.weights.group_form import GroupForm
from quire.models.weights.weight_kernel import WeightKernel, WeightOutline
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.rounding import Exact, assert_within, in_dtype, unit
from tests.models.weights.formats import (
    EXPONENTS,
    GROUP,
    LEAST,
    WIDTHS,
    numbers,
    outliers,
    spread,
)

ROWS = st.one_of(st.integers(1, 70), st.sampled_from((31, 32, 33, 64)))
DTYPES = st.sampled_from((torch.bfloat16, torch.float32))
SEEDS = st.integers(0, 99)
RUN = 32
FRACTION = 4
"""The bits behind the point of a run's step and begin."""
REACH = 119
"""The byte of a row's largest number."""
HALF, FLOAT = unit(torch.float16), unit(torch.float32)


@pytest.fixture(scope="module", params=[bind_w8a8, bind_w4a8], ids=["w8a8", "w4a8"])
def byte_kernel(request: pytest.FixtureRequest, isa: str) -> W8A8Kernel:
    bound: W8A8Kernel | None = request.param(library_of(isa))
    assert bound is not None
    return bound


@pytest.fixture(scope="module")
def w4a8(isa: str) -> W4A8Kernel:
    bound = bind_w4a8(library_of(isa))
    assert bound is not None
    return bound


@pytest.fixture(scope="module", params=ISAS)
def nibbles(request: pytest.FixtureRequest) -> WeightKernel:
    return bind_grouping(library_of(request.param), 4)


def unpacked(kernel: WeightKernel, weight: Tensor) -> Tensor:
    return kernel.unpack(kernel.pack(weight))


def sixteen_levels(n: int, k: int, seed: int, *, run: int) -> Tensor:
    """From 0 to 15, both of them in each run of columns."""
    levels = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(seed)).float()
    levels[:, ::run], levels[:, 1::run] = 0, 15
    return levels


def by_size(weight: Tensor) -> Tensor:
    """The weight of each number's error."""
    return weight.abs() + weight.abs().mean(-1, keepdim=True)


@given(n=st.integers(1, 20), k=WIDTHS, seed=SEEDS, exponent=st.sampled_from(EXPONENTS))
def test_numbers_of_sixteen_levels_come_back(
    w4a8: W4A8Kernel, n: int, k: int, seed: int, exponent: int
) -> None:
    """As Q4_1 has them: each run with a step and a begin of its own."""
    generator = torch.Generator().manual_seed(seed)
    runs = (n, -(-k // RUN))
    steps, begins = torch.rand(runs, generator=generator), torch.randn(runs, generator=generator)
    step, begin = (each.repeat_interleave(RUN, 1)[:, :k] for each in (steps + 0.1, begins))
    weight = (sixteen_levels(n, k, seed, run=RUN) * step + begin) * 10.0**exponent
    assert_within(unpacked(w4a8, weight), Exact(weight.double(), a_byte(weight) + LEAST))


def a_byte(weight: Tensor) -> Tensor:
    """The step, the begin and the byte itself are rounded: by half of their last bit, of which the
    step counts fifteen times, and numbers by what float32 makes of these."""
    rounded = ((15 + 1) / 2**FRACTION + 1) / 2 * (1 + 2.0**-10)
    return weight.double().abs().amax(-1, keepdim=True).div(REACH).mul(rounded)


@given(
    n=WIDTHS,
    k=WIDTHS,
    seed=SEEDS,
    exponent=st.sampled_from(EXPONENTS),
    knows_inputs=st.booleans(),
)
def test_error_of_a_run_is_no_more_than_steps_explain(
    w4a8: W4A8Kernel, n: int, k: int, seed: int, exponent: int, knows_inputs: bool
) -> None:
    """Fifteen steps from the lowest number to the highest round each by half of one at most. What
    is taken is no worse, weighted by the squares of inputs or else by size, but for the rounding of
    what is stored."""
    weight = numbers(n, k, seed=seed) * 10.0**exponent
    sizes = numbers(1, k, seed=seed + 1)[0].abs()
    is_weighed = knows_inputs and k < MIN_COLUMNS  # wider weights have outliers too
    packed = w4a8.pack_for(weight, sizes) if is_weighed else w4a8.pack(weight)
    left, byte = (w4a8.unpack(packed) - weight).double(), a_byte(weight)[:, 0]
    for first in range(0, k, RUN):
        part = weight[:, first : first + RUN].double()
        counted = by_size(part)
        if is_weighed:
            counted = sizes[first : first + RUN].double().square().expand_as(part)
        error = (counted * left[:, first : first + RUN] ** 2).sum(-1).sqrt()
        half_step = (part.amax(-1) - part.amin(-1)) / 30
        bound = counted.sum(-1).sqrt() * (half_step * (1 + 2.0**-10) + byte + LEAST)
        assert (error <= bound).all()


@pytest.mark.parametrize("k", [64, 640])
def test_columns_of_large_inputs_are_nearer(w4a8: W4A8Kernel, k: int) -> None:
    """The error of y is less than without the sizes of x: of 640 columns even without outliers."""
    weight, sizes = numbers(64, k, seed=1), torch.linspace(-3, 3, k).exp()
    known = w4a8.pack_for(weight, sizes)
    columns = torch.ones(k, dtype=torch.bool)
    if known.outliers is not None:
        columns[known.outliers[:NUM_OUTLIERS].long()] = False
    errors = [
        ((w4a8.unpack(each) - weight) * sizes)[:, columns].square().mean()
        for each in (known, w4a8.pack(weight))
    ]
    assert errors[0] < 0.95 * errors[1]


@pytest.mark.parametrize("size", [0.0, float("inf"), float("nan")])
def test_sizes_that_say_nothing_are_as_none(w4a8: W4A8Kernel, size: float) -> None:
    weight, sizes = numbers(16, 64, seed=1), torch.full((64,), size)
    assert torch.equal(w4a8.pack_for(weight, sizes).packed, w4a8.pack(weight).packed)


@given(n=ROWS, k=st.integers(1, 12), seed=SEEDS)
def test_nibbles_of_groups_are_no_worse_than_those_of_the_whole_range(
    nibbles: WeightKernel, n: int, k: int, seed: int
) -> None:
    """By the error that counts: each is weighted by the size of its number."""
    size = 16 if k % 2 else 32
    weight = numbers(n, 16 * k, seed=seed).view(n, -1, size)
    found = unpacked(nibbles, weight.flatten(1)).view_as(weight)
    lowest, highest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale, offset = ((highest - lowest) / 15).half().float(), lowest.half().float()
    plain = ((weight - offset) / scale).round().clamp(0, 15) * scale + offset
    error, most = (
        (by_size(weight).double() * (each.double() - weight) ** 2).sum(-1)
        for each in (found, plain)
    )
    assert (error <= most * (1 + 100 * FLOAT)).all()


@given(n=ROWS, k=st.integers(1, 12), seed=SEEDS)
def test_sixteen_levels_of_halves_are_found(
    nibbles: WeightKernel, n: int, k: int, seed: int
) -> None:
    """As a file of Q4_1 has them. What is left is the rounding of least squares to a half."""
    scale, offset = numbers(n, 1, seed=seed).half().abs().float() + 0.25, numbers(n, 1).half()
    weight = sixteen_levels(n, 16 * k, seed, run=16) * scale + offset.float()
    limit = (15 * scale + offset.abs()) * 4 * HALF
    assert_within(unpacked(nibbles, weight), Exact(weight.double(), limit))


def test_columns_that_are_no_whole_groups_are_not_taken(nibbles: WeightKernel) -> None:
    assert not nibbles.takes(numbers(4, 24))
    assert nibbles.planned_bytes(WeightOutline(4, 24, torch.float32, None)) is None
    with pytest.raises(ValueError, match="24 columns: must be a multiple of 16"):
        nibbles.pack(numbers(4, 24))
    assert torch.equal(unpacked(nibbles, torch.zeros(3, 32)), torch.zeros(3, 32))
    odd = WeightOutline(5, 36, torch.float32, None, GroupForm(12, 4, 2, False))
    grouped = bind_grouped(library_of(ISAS[0]))
    assert grouped.planned_bytes(odd) is None
    assert grouped.planned_bytes(odd._replace(form=None)) is None


def test_outlier_of_x_coarsens_only_its_group(byte_kernel: W8A8Kernel) -> None:
    x, weight = numbers(1, 1024).bfloat16(), numbers(64, 1024, seed=1).bfloat16()
    weight[:, :GROUP] = 0
    packed = byte_kernel.pack(weight)
    before = byte_kernel.linear(x, packed, None)
    x[0, 3] = 1e6
    assert torch.equal(byte_kernel.linear(x, packed, None), before)


@given(n=ROWS, k=st.integers(GROUP, 700), dtype=DTYPES, seed=SEEDS)
def test_outlier_columns_come_back_as_bfloat16(
    byte_kernel: W8A8Kernel, n: int, k: int, dtype: torch.dtype, seed: int
) -> None:
    """They are shares of their row's scale: two roundings, and that of the result. As large as they
    may be, they coarsen nothing beside them."""
    is_outlier, weight = outliers(k, seed), numbers(n, k, dtype=dtype, seed=seed)
    weight[:, is_outlier] *= 1000
    packed = byte_kernel.pack_for(weight, spread(k, seed))
    large = weight[:, is_outlier].double()
    error = large.abs() * (unit(torch.bfloat16) + 4 * FLOAT)
    found = byte_kernel.unpack(packed)
    assert_within(found[:, is_outlier], in_dtype(Exact(large, error), dtype))
    if byte_kernel.num_bits == 8:
        without = unpacked(byte_kernel, weight.masked_fill(is_outlier, 0))
        assert torch.equal(found[:, ~is_outlier], without[:, ~is_outlier])


def test_rows_of_outliers_alone_are_multiplied(byte_kernel: W8A8Kernel) -> None:
    weight = numbers(20, 300).masked_fill(~outliers(300), 0)
    x = numbers(3, 300, seed=1).bfloat16().float()
    found = byte_kernel.linear(x, byte_kernel.pack_for(weight, spread(300)), None)
    exact, terms = (each(x.double()) @ each(weight.double()).T for each in (torch.clone, torch.abs))
    assert_within(found, Exact(exact, terms * (unit(torch.bfloat16) + 2.0**-20)))


def test_weights_of_different_outliers_are_not_joined(byte_kernel: W8A8Kernel) -> None:
    weight = numbers(16, 300)
    packed = [
        byte_kernel.pack_for(weight, spread(300, 0)),
        byte_kernel.pack_for(weight, spread(300, 1)),
        byte_kernel.pack(weight),
        byte_kernel.pack_for(weight, spread(300, 0)),
    ]
    assert [byte_kernel.join(pair) for pair in pairwise(packed)] == [None, None, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_and_dot_products_sum_alike(isa: str, dtype: torch.dtype) -> None:
    """Whatever the instruction set, and however many the rows."""
    x, weight, found = numbers(70, 600, dtype=dtype), numbers(90, 600, dtype=dtype, seed=1), []
    for each in (ISAS_WITH_PRODUCTS[0], isa):
        kernel = bind_w8a8(library_of(each))
        assert kernel is not None
        found.append(kernel.linear(x, kernel.pack_for(weight, spread(600)), None))
    assert torch.equal(*found)


@pytest.mark.parametrize("floats", ISAS)
@given(n=WIDTHS, k=WIDTHS, exponent=st.sampled_from(EXPONENTS))
def test_widened_bytes_are_those_that_are_multiplied_as_bytes(
    isa: str, floats: str, n: int, k: int, exponent: int
) -> None:
    weight, w8a8 = numbers(n, k) * 10.0**exponent, bind_w8a8(library_of(isa))
    assert w8a8 is not None
    assert torch.equal(unpacked(bind_w8a32(library_of(floats)), weight), unpacked(w8a8, weight))


def test_weights_take_four_or_eight_bits_a_number(isa: str, w4a8: WeightKernel) -> None:
    """Beside a scale for each row, and three bytes for each run of nibbles."""
    assert w4a8.pack(numbers(160, 1024)).packed.nbytes == 160 * (1024 // 2 + 1024 // RUN * 3 + 4)


@given(n=ROWS, k=st.integers(1, 700), dtype=DTYPES)
def test_columns_that_are_few_have_no_outliers(
    byte_kernel: W8A8Kernel, n: int, k: int, dtype: torch.dtype
) -> None:
    packed = byte_kernel.pack_for(numbers(n, k, dtype=dtype), spread(k))
    assert (packed.outliers is None) == (k < GROUP)
    assert packed.packed.nbytes == byte_kernel.planned_bytes(WeightOutline(n, k, dtype, None))
