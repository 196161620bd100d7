"""Float32 weights become integers with a scale for each group: the error of each number, and the
products over them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.library import ISAS
from quire.models.native.linear.quantised.grouping import GroupingKernel, bind_grouping
from quire.models.weights.weight_kernel import WeightOutline
from tests.instructions import library_of
from tests.models.rounding import Exact, assert_within, linear_exactly, unit

ROWS = st.one_of(st.integers(1, 70), st.sampled_from((31, 32, 33, 64)))
COLUMNS = st.integers(1, 12).map(lambda count: 16 * count)
HALF, FLOAT = unit(torch.float16), unit(torch.float32)
LEAST_HALF = 2.0**-24


@pytest.fixture(scope="module", params=ISAS)
def nibbles(request: pytest.FixtureRequest) -> GroupingKernel:
    return bind_grouping(library_of(request.param), 4)


@pytest.fixture(scope="module", params=ISAS)
def octets(request: pytest.FixtureRequest) -> GroupingKernel:
    return bind_grouping(library_of(request.param), 8)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def groups_of(weight: Tensor) -> Tensor:
    """[N, groups, columns of a group]."""
    return weight.view(len(weight), -1, 32 if weight.shape[1] % 32 == 0 else 16)


@given(n=ROWS, k=COLUMNS, exponent=st.sampled_from((-3, 0, 3)), seed=st.integers(0, 99))
def test_a_number_in_a_byte_is_within_half_a_step_of_its_group(
    octets: GroupingKernel, n: int, k: int, exponent: int, seed: int
) -> None:
    """The scale is rounded to a half, by which a number of 127 steps may be off as well."""
    weight = numbers(n, k, seed=seed) * 10.0**exponent
    found = groups_of(octets.unpack(octets.pack(weight)))
    steps = groups_of(weight).abs().amax(-1, keepdim=True).double() / 127
    limit = steps * (0.5 + 127 * (HALF + 4 * FLOAT)) * (1 + HALF) + 128 * LEAST_HALF
    assert_within(found, Exact(groups_of(weight).double(), limit))


@given(n=ROWS, k=COLUMNS, seed=st.integers(0, 99))
def test_nibbles_are_no_worse_than_those_of_the_whole_range(
    nibbles: GroupingKernel, n: int, k: int, seed: int
) -> None:
    """By the error that counts: each is weighted by the size of its number."""
    weight = groups_of(numbers(n, k, seed=seed))
    found = groups_of(nibbles.unpack(nibbles.pack(weight.view(n, k))))
    lowest, highest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = ((highest - lowest) / 15).half().float()
    offset = lowest.half().float()
    plain = ((weight - offset) / scale).round().clamp(0, 15) * scale + offset

    def error(of: Tensor) -> Tensor:
        by = weight.abs() + weight.abs().mean(-1, keepdim=True)
        return (by.double() * (of.double() - weight) ** 2).sum(-1)

    assert (error(found) <= error(plain) * (1 + 100 * FLOAT)).all()


@given(n=ROWS, k=COLUMNS, seed=st.integers(0, 99))
def test_sixteen_levels_of_halves_are_found(
    nibbles: GroupingKernel, n: int, k: int, seed: int
) -> None:
    """As a file of Q4_1 has them. What is left is the rounding of least squares to a half."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 16, (n, k), generator=generator)
    levels[:, 0::16], levels[:, 1::16] = 0, 15
    scale, offset = numbers(n, 1, seed=seed).half().abs().float() + 0.25, numbers(n, 1).half()
    weight = levels * scale + offset.float()
    found = nibbles.unpack(nibbles.pack(weight))
    assert_within(found, Exact(weight.double(), (15 * scale + offset.abs()) * 4 * HALF))


@given(m=st.integers(1, 9), n=ROWS, k=COLUMNS)
def test_product_is_that_of_what_the_integers_say(
    nibbles: GroupingKernel, m: int, n: int, k: int
) -> None:
    x, packed = numbers(m, k), nibbles.pack(numbers(n, k, seed=1))
    weight = nibbles.unpack(packed)
    exact = linear_exactly(x, weight, None, num_roundings=k + 3, dtype=torch.float32)
    # Each number is rounded once as it is widened, in parts of its offset: 4 of a normal number.
    slack = x.double().abs().sum(-1, keepdim=True) * 8 * FLOAT
    assert_within(nibbles.linear(x, packed, None), Exact(exact.value, exact.error + slack))
    outline = WeightOutline(n, k, torch.float32, None)
    assert packed.packed.nbytes == nibbles.planned_bytes(outline)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_makes_its_column_nan_and_no_other(
    nibbles: GroupingKernel, octets: GroupingKernel, bad: float
) -> None:
    for kernel in (nibbles, octets):
        x, weight = numbers(9, 64), numbers(40, 64, seed=1)
        before = kernel.linear(x, kernel.pack(weight), None)
        weight[7, 3] = bad
        found = kernel.linear(x, kernel.pack(weight), None)
        assert found[:, 7].isnan().all()
        found[:, 7] = before[:, 7]
        assert torch.equal(found, before)


def test_what_does_not_fit_is_refused(nibbles: GroupingKernel) -> None:
    assert not nibbles.takes(numbers(4, 24)) and not nibbles.takes(numbers(4, 32).bfloat16())
    assert nibbles.planned_bytes(WeightOutline(4, 24, torch.float32, None)) is None
    with pytest.raises(ValueError, match="24 columns: must be a multiple of 16"):
        nibbles.pack(numbers(4, 24))
    with pytest.raises(ValueError, match="must be float32"):
        nibbles.pack(numbers(4, 32).bfloat16())
    zeros = torch.zeros(3, 32)
    assert torch.equal(nibbles.unpack(nibbles.pack(zeros)), zeros)
