"""Float32 products over integers with a scale for each group, against float64 ones of the numbers
that they stand for, by every instruction set."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.library import ISAS
from quire.models.native.linear.quantised.grouped import GroupedKernel, bind_grouped
from quire.models.native.packed_weight import PackedWeight
from quire.models.weights.group_form import GroupForm
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.weight_kernel import WeightOutline
from tests.instructions import library_of
from tests.models.rounding import Exact, assert_within, summed

COUNTS = st.one_of(st.integers(0, 60), st.just(300))
ROWS = st.one_of(st.integers(1, 100), st.sampled_from((31, 32, 33, 64, 129)))
SIZES = (8, 16, 32, 48, 64, 128, 256, 320)
FORMS = st.builds(
    GroupForm,
    st.sampled_from(SIZES),
    st.sampled_from((2, 3, 4, 5, 8)),
    st.sampled_from((2, 4)),
    st.booleans(),
)
GROUPS = st.integers(1, 3)


class Shape(NamedTuple):
    """Rows, groups of a row, and the form of these."""

    num_rows: int
    num_groups: int
    form: GroupForm


SHAPES = st.builds(Shape, ROWS, GROUPS, FORMS)


@pytest.fixture(scope="module", params=ISAS)
def kernel(request: pytest.FixtureRequest) -> GroupedKernel:
    return bind_grouped(library_of(request.param))


def weight_of(shape: Shape, seed: int = 0) -> GroupedWeight:
    """Random integers of all their bits, with scales of many sizes and signs."""
    generator = torch.Generator().manual_seed(seed)
    n, groups, form = shape
    lowest = 0 if form.has_offsets and form.num_bits < 8 else -(1 << form.num_bits - 1)
    highest = lowest + (1 << form.num_bits)
    numbers = torch.randint(lowest, highest, (n, groups * form.group_size), generator=generator)
    dtype = torch.float16 if form.scale_bytes == 2 else torch.float32
    scales, offsets = (
        (torch.randn(n, groups, generator=generator) * 2.0**exponent).to(dtype)
        for exponent in (-12, -9)
    )
    scales[0, 0], offsets[-1, -1] = 2.0**-24, 0  # the least half
    return GroupedWeight(
        numbers.to(torch.int8), scales, offsets if form.has_offsets else None, form.num_bits
    )


def pack(kernel: GroupedKernel, weight: GroupedWeight) -> PackedWeight:
    return kernel.pack_shards(weight.form, weight.numbers.shape, iter([weight]))


def product_of(x: Tensor, weight: GroupedWeight, bias: Tensor | None) -> Exact:
    """A number is widened and multiplied by its scale; the offset is added, or, in four bits
    without one, eight scales: 2 roundings. Then come those of the sum, and of the bias."""
    extra = 8 * weight.scales.abs() if weight.offsets is None else weight.offsets.abs()
    numbers = weight.numbers.double().abs() * spread(weight.scales.abs(), weight)
    sizes = x.double().abs() @ (numbers + spread(extra, weight)).T
    grouped = weight.numbers.double() * spread(weight.scales, weight)
    if weight.offsets is not None:
        grouped += spread(weight.offsets, weight)
    value = x.double() @ grouped.T
    if bias is not None:
        value, sizes = value + bias.double(), sizes + bias.double().abs()
    return Exact(value, summed(x.shape[1] + 3) * sizes)


def spread(factors: Tensor, weight: GroupedWeight) -> Tensor:
    return factors.double().repeat_interleave(weight.group_size, -1)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(m=COUNTS, shape=SHAPES, has_bias=st.booleans(), seed=st.integers(0, 99))
def test_product_is_that_of_the_numbers_that_are_stored(
    kernel: GroupedKernel, m: int, shape: Shape, has_bias: bool, seed: int
) -> None:
    weight = weight_of(shape, seed)
    x = numbers(m, weight.numbers.shape[1], seed=seed)
    bias = numbers(shape.num_rows, seed=seed + 1) if has_bias else None
    found = kernel.linear(x, pack(kernel, weight), bias)
    assert found.dtype == torch.float32
    assert_within(found, product_of(x, weight, bias))


@given(m=COUNTS, shape=SHAPES, has_bias=st.booleans())
def test_row_has_the_same_product_alone_and_in_company(
    kernel: GroupedKernel, m: int, shape: Shape, has_bias: bool
) -> None:
    packed = pack(kernel, weight_of(shape))
    x = numbers(m, packed.num_columns)
    bias = numbers(shape.num_rows, seed=1) if has_bias else None
    together = kernel.linear(x, packed, bias)
    for i in {0, 1, m // 2, m - 1} & set(range(m)):
        assert torch.equal(together[i], kernel.linear(x[i], packed, bias))


@given(shape=SHAPES, data=st.data())
def test_numbers_come_back_as_they_are(
    kernel: GroupedKernel, shape: Shape, data: st.DataObject
) -> None:
    weight = weight_of(shape)
    packed = pack(kernel, weight)
    assert torch.equal(kernel.unpack(packed), weight.values())
    last = shape.num_rows - 1
    indices = torch.tensor(data.draw(st.lists(st.integers(0, last), min_size=1, max_size=9)))
    assert torch.equal(kernel.rows(indices, packed), weight.values()[indices])
    n, k = weight.numbers.shape
    outline = WeightOutline(n, k, torch.float32, None, weight.form)
    assert packed.packed.nbytes == kernel.planned_bytes(outline)


@given(
    forms=st.lists(st.tuples(ROWS, FORMS), min_size=2, max_size=4),
    m=st.sampled_from((1, 9)),
)
def test_joined_weights_of_any_forms_are_one_and_stay_what_they_were(
    kernel: GroupedKernel, forms: list[tuple[int, GroupForm]], m: int
) -> None:
    num_columns = 3840  # whole groups of all SIZES
    weights = [
        weight_of(Shape(n, num_columns // form.group_size, form), seed=i)
        for i, (n, form) in enumerate(forms)
    ]
    parts = [pack(kernel, weight) for weight in weights]
    whole = kernel.join(parts)
    assert whole is not None
    assert torch.equal(kernel.unpack(whole), torch.cat([each.values() for each in weights]))
    x = numbers(m, num_columns)
    alone = [kernel.linear(x, part, None) for part in parts]
    assert torch.equal(kernel.linear(x, whole, None), torch.cat(alone, -1))
    for part, weight in zip(parts, weights, strict=True):
        assert torch.equal(kernel.unpack(part), weight.values())


@pytest.mark.parametrize("m", [1, 7, 300])
def test_product_is_the_same_on_any_number_of_threads(
    kernel: GroupedKernel, threads: int, m: int
) -> None:
    packed = pack(kernel, weight_of(Shape(1000, 3, GroupForm(32, 4, 2, True))))
    x = numbers(m, packed.num_columns)
    shared = kernel.linear(x, packed, None)
    torch.set_num_threads(1)
    assert torch.equal(shared, kernel.linear(x, packed, None))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_row_and_column(kernel: GroupedKernel, bad: float) -> None:
    weight = weight_of(Shape(40, 2, GroupForm(32, 4, 2, True)))
    x = numbers(9, 64)
    before = kernel.linear(x, pack(kernel, weight), None)
    weight.scales[7, 1], x[3, 5] = bad, bad
    found = kernel.linear(x, pack(kernel, weight), None)
    assert not found[:, 7].isfinite().any() and not found[3].isfinite().any()
    found[3], found[:, 7] = before[3], before[:, 7]
    assert torch.equal(found, before)


def test_what_does_not_fit_is_refused(kernel: GroupedKernel) -> None:
    packed = pack(kernel, weight_of(Shape(5, 2, GroupForm(16, 4, 2, False))))
    assert kernel.linear(numbers(2, 3, 32), packed, None).shape == (2, 3, 5)
    with pytest.raises(IndexError, match="5 rows"):
        kernel.rows(torch.tensor([5]), packed)
    for x in (numbers(1, 33), numbers(1, 32).bfloat16()):
        with pytest.raises(ValueError, match="must be"):
            kernel.linear(x, packed, None)
    assert not kernel.takes(numbers(4, 32))
    with pytest.raises(ValueError, match="no groups|stored in groups"):
        kernel.pack(numbers(4, 32))
    odd = WeightOutline(5, 36, torch.float32, None, GroupForm(12, 4, 2, False))
    assert kernel.planned_bytes(odd) is None
    assert kernel.planned_bytes(odd._replace(form=None)) is None
