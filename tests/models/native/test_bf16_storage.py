"""Float32 products over bfloat16 numbers against float64 ones, by every instruction set."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.library import ISAS
from quire.models.native.linear.bf16_storage import PANEL_ROWS, Bf16StorageKernel, bind_bf16_storage
from tests.instructions import library_of
from tests.models.rounding import assert_within, linear_exactly

EDGES = (1, 31, 32, 33, 63, 64, 65, 255, 256, 257)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from(EDGES))
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from((48, 49, 126, 127, 260)))
SHAPES = st.tuples(COUNTS, WIDTHS, WIDTHS)
"""Rows, columns and depth of a product: m, n and k."""


@pytest.fixture(scope="module", params=ISAS)
def kernel(request: pytest.FixtureRequest) -> Bf16StorageKernel:
    return bind_bf16_storage(library_of(request.param))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halves(*shape: int, seed: int = 0) -> Tensor:
    return numbers(*shape, seed=seed).bfloat16().float()


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@given(shape=SHAPES, has_bias=st.booleans(), seed=st.integers(0, 99))
def test_product_is_that_of_the_same_numbers(
    kernel: Bf16StorageKernel, shape: tuple[int, int, int], has_bias: bool, seed: int
) -> None:
    m, n, k = shape
    x, weight = numbers(m, k, seed=seed), halves(n, k, seed=seed + 1)
    bias = numbers(n, seed=seed + 2) if has_bias else None
    y = kernel.linear(x, kernel.pack(weight), bias)
    assert y.dtype == torch.float32
    assert_within(y, linear_exactly(x, weight, bias, num_roundings=k + 1, dtype=torch.float32))


@given(m=COUNTS, n=WIDTHS, k=WIDTHS)
def test_row_has_the_same_product_alone_and_in_company(
    kernel: Bf16StorageKernel, m: int, n: int, k: int
) -> None:
    x, weight = numbers(m, k), kernel.pack(halves(n, k, seed=1))
    together = kernel.linear(x, weight, None)
    assert torch.equal(together, torch.cat([kernel.linear(row[None], weight, None) for row in x]))


@pytest.mark.parametrize("m", [1, 7, 49, 300])
def test_product_is_the_same_on_any_number_of_threads(kernel: Bf16StorageKernel, m: int) -> None:
    x, weight, before = (
        numbers(m, 70),
        kernel.pack(halves(1000, 70, seed=1)),
        torch.get_num_threads(),
    )
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(kernel.linear(x, weight, None))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@given(n=WIDTHS, k=WIDTHS, seed=st.integers(0, 2**32), data=st.data())
def test_packed_are_the_bits_that_were_given(
    kernel: Bf16StorageKernel, n: int, k: int, seed: int, data: st.DataObject
) -> None:
    """Whatever they mean, in half of the memory."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randint(-(2**15), 2**15, (n, k), generator=generator, dtype=torch.int32)
    weight = (some << 16).view(torch.float32)
    assert kernel.takes(weight)
    packed = kernel.pack(weight)
    assert packed.packed.nbytes == -(-n // PANEL_ROWS) * PANEL_ROWS * k * 2
    assert torch.equal(bits(kernel.unpack(packed)), bits(weight))
    indices = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9)))
    assert torch.equal(bits(kernel.rows(indices, packed)), bits(weight[indices]))


@given(n=WIDTHS, k=WIDTHS, data=st.data())
def test_one_number_that_bfloat16_does_not_hold_is_enough(
    kernel: Bf16StorageKernel, n: int, k: int, data: st.DataObject
) -> None:
    weight = halves(n, k)
    place = data.draw(st.integers(0, n * k - 1))
    weight.view(-1)[place] = 1 + 2.0 ** -data.draw(st.integers(8, 23))
    assert not kernel.takes(weight)


def test_other_numbers_are_not_taken(kernel: Bf16StorageKernel) -> None:
    assert not kernel.takes(halves(4, 4).bfloat16()) and not kernel.takes(halves(4, 4).double())


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), k=WIDTHS)
def test_joined_weights_are_one_and_stay_what_they_were(
    kernel: Bf16StorageKernel, sizes: list[int], k: int
) -> None:
    weights = [halves(PANEL_ROWS * size, k, seed=i) for i, size in enumerate(sizes)]
    parts = [kernel.pack(weight) for weight in weights]
    whole = kernel.join(parts)
    assert whole is not None
    assert torch.equal(kernel.unpack(whole), torch.cat(weights))
    for part, weight in zip(parts, weights, strict=True):
        assert torch.equal(kernel.unpack(part), weight)


def test_infinities_and_nans_stay_in_their_places(kernel: Bf16StorageKernel) -> None:
    x, weight = numbers(3, 33), halves(20, 33, seed=1)
    x[1, 32] = torch.inf
    weight[7, 3] = torch.nan
    out = kernel.linear(x, kernel.pack(weight), None)
    assert out[:, 7].isnan().all()
    rest = torch.cat((out[:, :7], out[:, 8:]), dim=1)
    assert rest[[0, 2]].isfinite().all() and rest[1].isinf().all()


def test_what_does_not_fit_is_refused(kernel: Bf16StorageKernel) -> None:
    weight = kernel.pack(halves(5, 20))
    assert kernel.linear(numbers(0, 20), weight, None).shape == (0, 5)
    assert kernel.linear(numbers(2, 3, 20), weight, None).shape == (2, 3, 5)
    with pytest.raises(IndexError, match="5 rows"):
        kernel.rows(torch.tensor([5]), weight)
    for x in (numbers(1, 21), numbers(1, 20).bfloat16()):
        with pytest.raises(ValueError, match="must be"):
            kernel.linear(x, weight, None)
