"""Relocated tensors are the same tensors, elsewhere in memory."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quire.models.layers.relocation import relocate

DTYPES = (torch.bfloat16, torch.float32, torch.uint8)


@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from(DTYPES)), min_size=1, max_size=6))
def test_tensors_keep_their_numbers(sizes: list[tuple[int, torch.dtype]]) -> None:
    tensors = [torch.randint(0, 99, (size,)).to(dtype) for size, dtype in sizes]
    before = [tensor.clone() for tensor in tensors]
    relocate(tensors)
    pairs = zip(tensors, before, strict=True)
    assert all(torch.equal(tensor, copy) and tensor.dtype == copy.dtype for tensor, copy in pairs)


def test_tensors_lie_in_one_stretch_in_their_order() -> None:
    tensors = [torch.ones(100), torch.ones(7), torch.ones(1000)]
    relocate(tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert [tensor.data_ptr() for tensor in tensors] == sorted(map(torch.Tensor.data_ptr, tensors))


def test_what_shares_memory_goes_on_sharing_it() -> None:
    whole = torch.arange(60).view(6, 10)
    part, parameter = whole[2:4], nn.Parameter(whole[4:].float(), requires_grad=False)
    relocate([whole, part, parameter])
    whole[2, 0] = 99
    assert part[0, 0] == 99 and torch.equal(parameter.data, whole[4:].float())


def test_nothing_to_relocate_is_fine() -> None:
    relocate([])
