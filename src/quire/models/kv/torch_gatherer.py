"""Gathers blocks into rows by torch's operations: some for each tensor, on any device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.models.kv.rows import row_views


class TorchGatherer:
    """Implements `Gatherer` for the tensors of a store and its staging memory."""

    def __init__(self, tensors: Sequence[Tensor], staging: Tensor) -> None:
        self._tensors = tensors
        self._staged = row_views(staging, tensors)
        self._device = staging.device

    def gather(self, blocks: Sequence[int], first_row: int) -> None:
        ids = to_device(blocks, self._device)
        for tensor, staged in zip(self._tensors, self._staged, strict=True):
            staged[first_row : first_row + len(blocks)] = tensor.index_select(0, ids)

    def scatter(self, blocks: Sequence[int], first_row: int) -> None:
        ids = to_device(blocks, self._device)
        for tensor, staged in zip(self._tensors, self._staged, strict=True):
            tensor.index_copy_(0, ids, staged[first_row : first_row + len(blocks)])

    def fork(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        read, written = to_device([*sources, *targets], self._device).chunk(2)
        for tensor in self._tensors:
            tensor.index_copy_(0, written, tensor.index_select(0, read))


def to_device(ids: Sequence[int], device: torch.device) -> Tensor:
    """Return ids, int64, on `device`; the host does not wait for the copy.

    torch reuses pinned memory only when the copy from it is done.
    """
    on_host = torch.tensor(ids, dtype=torch.int64, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True)
