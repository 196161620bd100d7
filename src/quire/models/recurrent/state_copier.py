"""Copies states between the device and the host, as `BlockCopier` copies blocks: a state is one row
of one tensor, and one is some tens of MiB."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyKind, CopyTime
from quire.models.kv.block_copier import BlockCopier
from quire.models.kv.copy_queue import SyncCopyQueue
from quire.models.kv.staged_queue import StagedQueue, gpu_streams, half_rows
from quire.models.recurrent.state_store import StateStore

ROW_KINDS = {CopyKind.STATE_OUT: CopyKind.OUT, CopyKind.STATE_IN: CopyKind.IN}
"""The kinds of copies of states as kinds of copies of rows."""


@dataclass(frozen=True, slots=True)
class StateCopier:
    """Copies the states of one state store by `rows`, a copier of its rows."""

    rows: BlockCopier

    def copy_states(self, copies: Sequence[BlockCopy]) -> None:
        """Start the copies of states among `copies`, in order, before a step is computed. The step
        may overwrite every state that is copied out."""
        moves = [
            BlockCopy(ROW_KINDS[each.kind], each.source, each.target)
            for each in copies
            if each.kind.is_of_state
        ]
        left = {each.source for each in moves if each.kind is CopyKind.OUT}
        self.rows.copy_blocks(moves, left)

    def take_copy_time(self) -> CopyTime:
        """Return the time of the copies and stalls that are over and were not told of yet."""
        num_rows, copy_s, stall_s, *_ = self.rows.take_copy_time()
        return CopyTime(stall_s=stall_s, num_states=num_rows, state_copy_s=copy_s)


class RowGatherer:
    """Implements `Gatherer` for the rows of one tensor and its staging memory, a copy for each."""

    def __init__(self, rows: Tensor, staging: Tensor) -> None:
        self._rows = rows
        self._staging = staging

    def gather(self, blocks: Sequence[int], first_row: int) -> None:
        for at, row in enumerate(blocks, first_row):
            self._staging[at].copy_(self._rows[row], non_blocking=True)

    def scatter(self, blocks: Sequence[int], first_row: int) -> None:
        for at, row in enumerate(blocks, first_row):
            self._rows[row].copy_(self._staging[at], non_blocking=True)

    def fork(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._rows[target].copy_(self._rows[source], non_blocking=True)


def build_state_copier(store: StateStore, device: torch.device) -> StateCopier | None:
    """Return the copier of a store's states on `device`, None if the host has no states. On a GPU
    it takes staging memory."""
    if store.host is None:
        return None
    if device.type == "cpu":
        return StateCopier(BlockCopier(SyncCopyQueue([store.rows], [store.host])))
    num_rows = 2 * half_rows(len(store.host), store.state_bytes)
    staging = torch.empty((num_rows, store.rows.shape[1]), device=device)
    gatherer = RowGatherer(store.rows, staging)
    return StateCopier(BlockCopier(StagedQueue(gatherer, store.host, staging, gpu_streams(device))))
