"""Candidate pruning against the whole product: the largest of each row are never missed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.linear.candidates import CandidateKernel, bind_candidates
from quire.models.native.linear.compressed_bf16 import PANEL_ROWS, CompressedBf16Kernel
from tests.instructions import library_of
from tests.models.native.test_compressed_bf16 import SHAPES, WIDTHS, numbers, wild_numbers


@pytest.fixture(scope="session")
def pruning(kernels: ModelKernels) -> CandidateKernel:
    assert kernels.candidates is not None
    return kernels.candidates


def assert_largest(
    kernel: CompressedBf16Kernel, pruning: CandidateKernel, weight: torch.Tensor, x: torch.Tensor
) -> float:
    """The same largest entries, its equals among them, as the whole product has; what is there is
    the product's. Returns the share of panels that are candidates."""
    packed = kernel.pack(weight)
    whole = kernel.linear(x, packed, None)
    made = pruning.pack(packed)
    assert made is not None
    found = pruning.find_candidates(x, made)
    some = pruning.linear(x, packed, found)
    is_largest = whole == whole.amax(-1, keepdim=True)
    assert torch.equal(some[is_largest], whole[is_largest])
    is_there = some > -torch.inf
    assert torch.equal(some[is_there], whole[is_there])
    assert torch.equal(whole.isnan(), some.isnan())
    return found.count / (len(x) * -(-len(weight) // PANEL_ROWS))


@st.composite
def rows(draw: st.DrawFn, m: int, k: int) -> torch.Tensor:
    """[m, k]: as normed states are, some columns much larger, some rows much smaller or zero."""
    x = numbers(m, k, seed=draw(st.integers(0, 99)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    is_large = torch.rand(k, generator=generator) < draw(st.sampled_from((0.0, 0.02)))
    x[:, is_large] *= 50
    x *= torch.tensor([1.0, 1.0, 2.0**-20, 2.0**-100, 0.0])[torch.arange(m) % 5, None]
    return x


@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 99))
def test_the_largest_of_each_row_are_found(
    kernel: CompressedBf16Kernel,
    pruning: CandidateKernel,
    data: st.DataObject,
    shape: tuple[int, int, int],
    seed: int,
) -> None:
    m, n, k = shape
    assert_largest(kernel, pruning, numbers(n, k, seed=seed), data.draw(rows(m, k)))


@given(data=st.data(), shape=st.tuples(st.integers(1, 20), WIDTHS, WIDTHS))
def test_the_largest_by_wild_weights_are_found(
    kernel: CompressedBf16Kernel,
    pruning: CandidateKernel,
    data: st.DataObject,
    shape: tuple[int, int, int],
) -> None:
    m, n, k = shape
    weight = data.draw(wild_numbers(n, k))
    weight[~(weight.float().abs() < 1e10)] = 1
    assert_largest(kernel, pruning, weight, data.draw(rows(m, k)))


@given(shape=st.tuples(st.integers(1, 70), st.integers(2, 40), WIDTHS), seed=st.integers(0, 99))
def test_equals_of_the_largest_are_found(
    kernel: CompressedBf16Kernel,
    pruning: CandidateKernel,
    shape: tuple[int, int, int],
    seed: int,
) -> None:
    """Also those that only rounding makes equal."""
    m, copies, k = shape
    weight = numbers(40, k, seed=seed).repeat(copies, 1)
    weight[: len(weight) // 2] *= 1 + 2.0**-7
    assert_largest(kernel, pruning, weight, numbers(m, k, seed=seed + 1))


@pytest.mark.parametrize("m", [1, 6, 33, 130])
def test_few_panels_are_candidates_and_the_same_largest_on_any_number_of_threads(
    kernel: CompressedBf16Kernel, pruning: CandidateKernel, threads: int, m: int
) -> None:
    x, weight = numbers(m, 200), numbers(20_000, 200, seed=1)
    assert assert_largest(kernel, pruning, weight, x) < 0.1


def test_all_of_a_row_that_is_not_finite_is_a_candidate(
    kernel: CompressedBf16Kernel, pruning: CandidateKernel
) -> None:
    x, weight = numbers(3, 64), numbers(300, 64, seed=1)
    x[0, 5], x[2, 7] = torch.nan, torch.inf
    packed = kernel.pack(weight)
    made = pruning.pack(packed)
    assert made is not None
    some = pruning.linear(x, packed, pruning.find_candidates(x, made))
    whole = kernel.linear(x, packed, None)
    for row in (0, 2):
        assert torch.equal(some[row].view(torch.int16), whole[row].view(torch.int16))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e15])
def test_weight_without_bounds_is_not_packed(
    kernel: CompressedBf16Kernel, pruning: CandidateKernel, bad: float
) -> None:
    weight = numbers(100, 33)
    weight[70, 32] = bad
    assert pruning.pack(kernel.pack(weight)) is None


def test_sets_without_its_products_have_no_kernel() -> None:
    assert bind_candidates(library_of("portable")) is None
