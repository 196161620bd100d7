"""Relocates weights that are read in every step into one region of memory, in their order."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quire.models.kv.huge_pages import return_free_memory, zeros_on_touch
from quire.models.layers.module_replacement import packed_tensors
from quire.models.optimizations import Disabled, Optimization

LINE_BYTES = 64
MAX_FREED_BYTES = 1 << 27
"""Freed bytes after which they are returned to the system."""


def relocate_weights(module: nn.Module, disabled: Disabled) -> None:
    """Relocate the packed weights of `module` into one region, unless that is switched off."""
    if Optimization.WEIGHT_RELOCATION not in disabled:
        huge_pages = Optimization.HUGE_PAGES not in disabled
        relocate(packed_tensors(module), huge_pages=huge_pages)


def relocate(tensors: Sequence[Tensor], *, huge_pages: bool = True) -> None:
    """Copy the data of `tensors` into one region, and let them be views of it.

    Each stays the same object, and those that share memory go on sharing it. At any time at most
    one is there twice. The region lives as long as one of the tensors.
    """
    shared: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        shared.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    num_bytes = sum(_aligned(group[0].untyped_storage().nbytes()) for group in shared.values())
    region, offset, num_freed = zeros_on_touch(num_bytes, huge_pages=huge_pages), 0, 0
    for group in shared.values():
        storage = group[0].untyped_storage()
        old = torch.empty(0, dtype=torch.uint8).set_(storage)
        new = region[offset : offset + len(old)].copy_(old)
        for tensor in group:
            tensor.data = _view_like(tensor, new)
        offset += _aligned(len(old))
        num_freed += len(old)
        if num_freed > MAX_FREED_BYTES:
            del storage, old
            return_free_memory()
            num_freed = 0


def _view_like(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return a view of `memory` at the offset that `tensor` has in its own storage."""
    first = memory.storage_offset() // tensor.itemsize + tensor.storage_offset()
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(memory.untyped_storage(), first, tensor.shape, tensor.stride())


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES
