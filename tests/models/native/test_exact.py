"""What the formats of exact numbers have of their own: what they can hold, and in how few bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.native.library import ISAS
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel
from tests.instructions import library_of
from tests.models.weights.formats import WIDTHS, any_bits, halves

SEEDS = st.integers(0, 999)
BF16 = torch.bfloat16


@pytest.mark.parametrize("isa", ISAS)
@given(n=WIDTHS, k=WIDTHS, data=st.data())
def test_one_number_that_bfloat16_does_not_hold_is_enough(
    isa: str, n: int, k: int, data: st.DataObject
) -> None:
    weight = halves(n, k, torch.float32, 0)
    place = data.draw(st.integers(0, n * k - 1))
    weight.view(-1)[place] = 1 + 2.0 ** -data.draw(st.integers(8, 23))
    assert not bind_bf16_storage(library_of(isa)).takes(weight)


@given(n=WIDTHS, k=WIDTHS, seed=SEEDS)
def test_each_weight_is_multiplied_as_it_is(
    kernel: CompressedBf16Kernel, n: int, k: int, seed: int
) -> None:
    """But for denormal ones, which the product takes for zeros."""
    weight = any_bits(n, k, BF16, seed)
    weight[~(weight.float().abs() < torch.inf)] = 1
    weight[weight.float().abs() < torch.finfo(BF16).tiny] = 0
    packed, ones = kernel.pack(weight), torch.eye(k, dtype=BF16)
    assert torch.equal(kernel.linear(ones, packed, None), weight.T)
    assert torch.equal(kernel.linear(ones[-1:], packed, None), weight.T[-1:])


@given(seed=SEEDS)
def test_no_weight_takes_more_than_a_line_for_16_steps_more_than_it_took(
    kernel: CompressedBf16Kernel, seed: int
) -> None:
    packed = kernel.pack(any_bits(64, 400, BF16, seed))
    assert packed.packed.nbytes <= packed.plain_bytes + 2 * (1 + 7) * 64


def test_weights_as_they_are_trained_take_three_quarters(kernel: CompressedBf16Kernel) -> None:
    packed = kernel.pack(halves(64, 4000, BF16, 0))
    assert packed.packed.nbytes < 0.77 * packed.plain_bytes
