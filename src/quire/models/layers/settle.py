"""Moves tensors that are read in every step into one stretch of memory, in their order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.models.kv.pages import give_back, zeros_on_touch

LINE_BYTES = 64
MOST_LEFT_BYTES = 1 << 27
"""Of what was left, before it is given back."""


def settle(tensors: Sequence[Tensor]) -> None:
    """Each goes on as the same object, and those that share memory go on sharing it. No more than
    one is there twice at a time. The memory lives as long as one of them."""
    shared: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        shared.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    num_bytes = sum(_line_up(group[0].untyped_storage().nbytes()) for group in shared.values())
    place, offset, num_left = zeros_on_touch(num_bytes), 0, 0
    for group in shared.values():
        storage = group[0].untyped_storage()
        old = torch.empty(0, dtype=torch.uint8).set_(storage)
        new = place[offset : offset + len(old)].copy_(old)
        for tensor in group:
            tensor.data = _view_like(tensor, new)
        offset += _line_up(len(old))
        num_left += len(old)
        if num_left > MOST_LEFT_BYTES:
            del storage, old
            give_back()
            num_left = 0


def _view_like(tensor: Tensor, memory: Tensor) -> Tensor:
    """Where `tensor` lies in its own memory, in `memory`."""
    first = memory.storage_offset() // tensor.itemsize + tensor.storage_offset()
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(memory.untyped_storage(), first, tensor.shape, tensor.stride())


def _line_up(num_bytes: int) -> int:
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES
