"""What is packed for one copy comes out of it as it was."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.engine.host_to_device import pack, to_device, unpack

DTYPES = (torch.int32, torch.int64, torch.float32, torch.float64)
pieces = st.lists(
    st.builds(
        lambda rows, columns, dtype: (torch.rand(columns, rows) * 1000).to(dtype).T,
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from(DTYPES),
    ),
    max_size=6,
)


@given(pieces)
def test_pieces_of_any_kind_and_stride_come_out_as_they_were(pieces: list[Tensor]) -> None:
    arrived = unpack(pack(pieces).clone(), pieces)
    for here, there in zip(pieces, arrived, strict=True):
        assert here.dtype is there.dtype
        assert torch.equal(here, there)


@given(pieces)
def test_a_cpu_gets_what_it_has(pieces: list[Tensor]) -> None:
    sent = to_device(pieces, torch.device("cpu"))
    assert all(here is there for here, there in zip(pieces, sent, strict=True))
