"""The screen of a head against the whole product: the largest of each row are never missed."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.linear.linear import PANEL_ROWS, LinearKernel
from quire.models.native.linear.screen import ScreenKernel, bind_screen
from tests.models.native.test_linear import COUNTS, WIDTHS, numbers, wild_numbers


@pytest.fixture(scope="session")
def screen(kernels: ModelKernels) -> ScreenKernel:
    assert kernels.screen is not None
    return kernels.screen


def assert_largest(
    kernel: LinearKernel, screen: ScreenKernel, weight: torch.Tensor, x: torch.Tensor
) -> float:
    """The same largest entries, its equals among them, as the whole product has; what is there is
    the product's. The share of panels that was chosen."""
    packed = kernel.pack(weight)
    whole = kernel.linear(x, packed, None)
    made = screen.pack(packed)
    assert made is not None
    choice = screen.choose(x, made)
    some = screen.linear(x, packed, choice)
    is_largest = whole == whole.amax(-1, keepdim=True)
    assert torch.equal(some[is_largest], whole[is_largest])
    is_there = some > -torch.inf
    assert torch.equal(some[is_there], whole[is_there])
    assert torch.equal(whole.isnan(), some.isnan())
    return choice.count / (len(x) * -(-len(weight) // PANEL_ROWS))


@st.composite
def rows(draw: st.DrawFn, m: int, k: int) -> torch.Tensor:
    """[m, k]: as normed states are, some columns much larger, some rows much smaller or zero."""
    x = numbers(m, k, seed=draw(st.integers(0, 99)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    is_large = torch.rand(k, generator=generator) < draw(st.sampled_from((0.0, 0.02)))
    x[:, is_large] *= 50
    x *= torch.tensor([1.0, 1.0, 2.0**-20, 2.0**-100, 0.0])[torch.arange(m) % 5, None]
    return x


@given(data=st.data(), m=COUNTS, n=WIDTHS, k=WIDTHS, seed=st.integers(0, 99))
def test_the_largest_of_each_row_are_found(
    kernel: LinearKernel,
    screen: ScreenKernel,
    data: st.DataObject,
    m: int,
    n: int,
    k: int,
    seed: int,
) -> None:
    assert_largest(kernel, screen, numbers(n, k, seed=seed), data.draw(rows(m, k)))


@given(data=st.data(), m=st.integers(1, 20), n=WIDTHS, k=WIDTHS)
def test_the_largest_by_wild_weights_are_found(
    kernel: LinearKernel, screen: ScreenKernel, data: st.DataObject, m: int, n: int, k: int
) -> None:
    weight = data.draw(wild_numbers(n, k))
    weight[~(weight.float().abs() < 1e10)] = 1
    assert_largest(kernel, screen, weight, data.draw(rows(m, k)))


@given(m=st.integers(1, 70), copies=st.integers(2, 40), k=WIDTHS, seed=st.integers(0, 99))
def test_equals_of_the_largest_are_found(
    kernel: LinearKernel, screen: ScreenKernel, m: int, copies: int, k: int, seed: int
) -> None:
    """Also those that only rounding makes equal."""
    weight = numbers(40, k, seed=seed).repeat(copies, 1)
    weight[: len(weight) // 2] *= 1 + 2.0**-7
    assert_largest(kernel, screen, weight, numbers(m, k, seed=seed + 1))


@pytest.mark.parametrize("m", [1, 6, 33, 130])
def test_few_panels_are_chosen_and_the_same_largest_on_any_number_of_threads(
    kernel: LinearKernel, screen: ScreenKernel, threads: int, m: int
) -> None:
    x, weight = numbers(m, 200), numbers(20_000, 200, seed=1)
    assert assert_largest(kernel, screen, weight, x) < 0.1


def test_all_of_a_row_that_is_not_finite_is_chosen(
    kernel: LinearKernel, screen: ScreenKernel
) -> None:
    x, weight = numbers(3, 64), numbers(300, 64, seed=1)
    x[0, 5], x[2, 7] = torch.nan, torch.inf
    packed = kernel.pack(weight)
    made = screen.pack(packed)
    assert made is not None
    some = screen.linear(x, packed, screen.choose(x, made))
    whole = kernel.linear(x, packed, None)
    for row in (0, 2):
        assert torch.equal(some[row].view(torch.int16), whole[row].view(torch.int16))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e15])
def test_weight_without_bounds_has_no_screen(
    kernel: LinearKernel, screen: ScreenKernel, bad: float
) -> None:
    weight = numbers(100, 33)
    weight[70, 32] = bad
    assert screen.pack(kernel.pack(weight)) is None


def test_library_without_the_functions_gives_no_screen() -> None:
    assert bind_screen(ctypes.CDLL(None), "avx512") is None
