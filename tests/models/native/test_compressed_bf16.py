"""The packed linear kernel against float32 products of the same bfloat16 numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.linear.compressed_bf16 import (
    PANEL_ROWS,
    CompressedBf16Kernel,
    bind_compressed_bf16,
)
from quire.models.native.packed_weight import PackedWeight
from tests.instructions import library_of
from tests.models.rounding import assert_within, linear_exactly

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from((*EDGES, 255, 256, 257, 896)))
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from((64, 97, 200)))
SHAPES = st.tuples(COUNTS, WIDTHS, WIDTHS)
"""Rows, columns and depth of a product: m, n and k."""


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """By which every NaN is one of its own, and zeros have a sign."""
    return tensor.contiguous().view(torch.int16)


@st.composite
def wild_numbers(draw: st.DrawFn, n: int, k: int) -> torch.Tensor:
    """[n, k]: any bits, few exponents, zeros, numbers as trained weights are; some of each."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    any_bits = torch.randint(-(2**15), 2**15, (n, k), generator=generator, dtype=torch.int16)
    few = any_bits & draw(st.sampled_from((0x007F, 0x01FF, 0x0FFF, -0x7F01)))
    plain = bits(torch.randn(n, k, generator=generator).bfloat16())
    zeros = torch.zeros(n, k, dtype=torch.int16)
    kinds = st.sampled_from((any_bits, few, plain, zeros))
    most, rare = draw(kinds), draw(kinds)
    is_rare = torch.rand(n, k, generator=generator) < draw(st.sampled_from((0.0, 1e-3, 0.1)))
    return torch.where(is_rare, rare, most).view(torch.bfloat16)


WILD = st.tuples(WIDTHS, WIDTHS).flatmap(lambda shape: wild_numbers(*shape))


def assert_product(
    kernel: CompressedBf16Kernel, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    given_y = kernel.linear(x, kernel.pack(weight), bias)
    assert given_y.dtype == torch.bfloat16
    roundings = 2 * x.shape[-1] + 1  # of a product and of a sum, and of the sum with the bias
    exact = linear_exactly(x, weight, bias, num_roundings=roundings, dtype=torch.bfloat16)
    assert_within(given_y, exact)


@given(shape=SHAPES, has_bias=st.booleans(), seed=st.integers(0, 99))
def test_product_is_that_of_the_same_numbers(
    kernel: CompressedBf16Kernel, shape: tuple[int, int, int], has_bias: bool, seed: int
) -> None:
    m, n, k = shape
    bias = numbers(n, seed=seed + 2) if has_bias else None
    assert_product(kernel, numbers(m, k, seed=seed), numbers(n, k, seed=seed + 1), bias)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(257, 700, 300), (520, 300, 2048), (530, 600, 1184), (1030, 33, 4096)]
)
def test_product_of_many_rows_is_that_of_each(
    kernel: CompressedBf16Kernel, m: int, n: int, k: int
) -> None:
    x, weight, bias = numbers(m, k), numbers(n, k, seed=1), numbers(n, seed=2)
    assert_product(kernel, x, weight, bias)
    packed = kernel.pack(weight)
    together, apart = kernel.linear(x, packed, None), kernel.linear(x[::97], packed, None)
    assert torch.equal(together[::97], apart)


@pytest.mark.parametrize("m", [1, 6, 7, 13, 32, 33, 100])
def test_product_is_the_same_on_any_number_of_threads(
    kernel: CompressedBf16Kernel, threads: int, m: int
) -> None:
    x, weight = numbers(m, 70), kernel.pack(numbers(1000, 70, seed=1))
    shared = kernel.linear(x, weight, None)
    torch.set_num_threads(1)
    assert torch.equal(shared, kernel.linear(x, weight, None))


@given(m=COUNTS, n=WIDTHS, k=WIDTHS)
def test_row_has_the_same_product_alone_and_in_company(
    kernel: CompressedBf16Kernel, m: int, n: int, k: int
) -> None:
    x, weight = numbers(m, k), kernel.pack(numbers(n, k, seed=1))
    together = kernel.linear(x, weight, None)
    alone = [kernel.linear(row[None], weight, None) for row in x]
    assert torch.equal(together, torch.cat(alone))


@given(weight=WILD, m=st.integers(1, 70), seed=st.integers(0, 99))
def test_wild_weights_have_the_same_products_alone_and_in_company(
    kernel: CompressedBf16Kernel, weight: torch.Tensor, m: int, seed: int
) -> None:
    x, packed = numbers(m, weight.shape[1], seed=seed), kernel.pack(weight)
    together = kernel.linear(x, packed, None)
    alone = [kernel.linear(row[None], packed, None) for row in x]
    assert torch.equal(bits(together), bits(torch.cat(alone)))


@given(weight=WILD)
def test_each_weight_is_multiplied_as_it_is(
    kernel: CompressedBf16Kernel, weight: torch.Tensor
) -> None:
    """But for denormal ones, which the product takes for zeros."""
    weight[~(weight.float().abs() < torch.inf)] = 1
    weight[weight.float().abs() < torch.finfo(torch.bfloat16).tiny] = 0
    packed, ones = kernel.pack(weight), torch.eye(weight.shape[1], dtype=torch.bfloat16)
    assert torch.equal(kernel.linear(ones, packed, None), weight.T)
    assert torch.equal(kernel.linear(ones[-1:], packed, None), weight.T[-1:])


@given(weight=WILD)
def test_unpacked_weight_is_the_one_that_was_packed(
    kernel: CompressedBf16Kernel, weight: torch.Tensor
) -> None:
    assert torch.equal(bits(kernel.unpack(kernel.pack(weight))), bits(weight))


@given(weight=WILD, data=st.data())
def test_rows_are_those_of_the_weight(
    kernel: CompressedBf16Kernel, weight: torch.Tensor, data: st.DataObject
) -> None:
    rows = st.lists(st.integers(0, len(weight) - 1), min_size=1, max_size=9)
    indices = torch.tensor(data.draw(rows))
    assert torch.equal(bits(kernel.rows(indices, kernel.pack(weight))), bits(weight[indices]))


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), k=WIDTHS, data=st.data())
def test_joined_weights_are_one_and_stay_what_they_were(
    kernel: CompressedBf16Kernel, sizes: list[int], k: int, data: st.DataObject
) -> None:
    weights = [data.draw(wild_numbers(PANEL_ROWS * size, k)) for size in sizes]
    weights[-1] = weights[-1][: data.draw(st.integers(1, len(weights[-1])))]
    parts = [kernel.pack(weight) for weight in weights]
    whole = kernel.join(parts)
    assert whole is not None
    assert torch.equal(bits(kernel.unpack(whole)), bits(torch.cat(weights)))
    for part, weight in zip(parts, weights, strict=True):
        assert torch.equal(bits(kernel.unpack(part)), bits(weight))
        assert part.packed.untyped_storage().data_ptr() == whole.packed.untyped_storage().data_ptr()


def test_weights_that_do_not_fill_their_panels_are_not_joined(kernel: CompressedBf16Kernel) -> None:
    assert kernel.join([kernel.pack(numbers(rows, 20)) for rows in (33, 32)]) is None


@given(weight=wild_numbers(64, 400))
def test_no_weight_takes_more_than_a_line_for_16_steps_more_than_it_took(
    kernel: CompressedBf16Kernel, weight: torch.Tensor
) -> None:
    packed = kernel.pack(weight)
    assert packed.packed.nbytes <= packed.plain_bytes + 2 * (1 + 7) * 64


def test_weights_as_they_are_trained_take_three_quarters(kernel: CompressedBf16Kernel) -> None:
    packed = kernel.pack(numbers(64, 4000))
    assert packed.packed.nbytes < 0.77 * packed.plain_bytes


def test_leading_dimensions_are_kept(kernel: CompressedBf16Kernel) -> None:
    x, weight = numbers(2, 3, 20), kernel.pack(numbers(5, 20, seed=1))
    out = kernel.linear(x, weight, None)
    assert out.shape == (2, 3, 5)
    assert torch.equal(out.view(6, 5), kernel.linear(x.view(6, 20), weight, None))


def test_unaligned_and_strided_inputs_are_read_right(kernel: CompressedBf16Kernel) -> None:
    weight, store = numbers(40, 31, seed=1), numbers(10 * 31 + 1)
    assert_product(kernel, store[1:].view(10, 31), weight, None)
    assert_product(kernel, numbers(31, 10).T, weight, None)
    assert_product(kernel, numbers(10, 62)[:, ::2], weight.T.contiguous().T, None)


def test_no_rows_give_no_rows(kernel: CompressedBf16Kernel) -> None:
    weight = kernel.pack(numbers(5, 20))
    assert kernel.linear(numbers(0, 20), weight, None).shape == (0, 5)


def test_infinities_and_nans_stay_in_their_places(kernel: CompressedBf16Kernel) -> None:
    x, weight = numbers(3, 33), numbers(20, 33, seed=1)
    x[1, 32] = torch.inf
    weight[7, 3] = torch.nan
    out = kernel.linear(x, kernel.pack(weight), None)
    assert out[:, 7].isnan().all()
    rest = torch.cat((out[:, :7], out[:, 8:]), dim=1)
    assert rest[[0, 2]].isfinite().all() and rest[1].isinf().all()


@pytest.mark.parametrize("index", [-1, 5])
def test_row_that_is_not_there_is_refused(kernel: CompressedBf16Kernel, index: int) -> None:
    with pytest.raises(IndexError, match="5 rows"):
        kernel.rows(torch.tensor([index]), kernel.pack(numbers(5, 20)))


@pytest.mark.parametrize("x", [torch.zeros(1, 20), numbers(1, 21)], ids=["dtype", "width"])
def test_input_that_does_not_fit_is_refused(kernel: CompressedBf16Kernel, x: torch.Tensor) -> None:
    weight: PackedWeight = kernel.pack(numbers(5, 20))
    with pytest.raises(ValueError, match="must be"):
        kernel.linear(x, weight, None)


def test_sets_without_its_products_have_no_kernel() -> None:
    assert bind_compressed_bf16(library_of("portable")) is None
