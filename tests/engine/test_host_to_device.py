"""What is packed for one copy comes out of it as it was."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.engine.host_to_device import pack, to_device, unpack

DTYPES = (torch.int32, torch.int64, torch.float32, torch.float64)
tensors = st.lists(
    st.builds(
        lambda rows, columns, dtype: (torch.rand(columns, rows) * 1000).to(dtype).T,
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from(DTYPES),
    ),
    max_size=6,
)


@given(tensors)
def test_tensors_of_any_dtype_and_stride_come_out_as_they_were(tensors: list[Tensor]) -> None:
    arrived = unpack(pack(tensors).clone(), tensors)
    for here, there in zip(tensors, arrived, strict=True):
        assert here.dtype is there.dtype
        assert torch.equal(here, there)


@given(tensors)
def test_a_cpu_gets_what_it_has(tensors: list[Tensor]) -> None:
    sent = to_device(tensors, torch.device("cpu"))
    assert all(here is there for here, there in zip(tensors, sent, strict=True))
