"""The blocks and states that are in the prefix cache and not yet on disk.

All blocks are written soon after they can be found, prompts and outputs: an engine that is killed
writes nothing more, and what it had computed is what the next one is asked for. Of states only
those are written that last. Each is written once. They are copied between steps, many at a time;
one that is evicted before is left out.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from quire.cache.block_hash import STATE_GROUP, group_key
from quire.cache.chain import Content
from quire.cache.transfers import Transfers
from quire.engine.persistence.block_port import BlockPort, row_views
from quire.engine.persistence.stores import Stores
from quire.models.block_rows import BlockRows
from quire.models.kv.streams import Mark
from quire.storage.disk.block_header import BlockIdentity, identity_of
from quire.storage.disk.write_behind import UnsavedBlock

PATIENCE_S = 0.25
"""Seconds that a block waits for others, so that a step copies many blocks or none."""
OFFERED_PATIENCE_S = 0.01
"""The same with KV transfer, where other engines may need the blocks at once."""
COPY_S = 0.001
"""The approximate time of a device for copying some megabytes."""
MAX_COPIED = 2
"""The maximum number of batches of blocks in transit from the device."""
MAX_UNSAVED = 1 << 16
"""The most blocks that wait; the oldest go without being written."""


class _Block(NamedTuple):
    content: Content
    group: int


class _Copied(NamedTuple):
    """Blocks whose rows are right once the mark is reached."""

    blocks: list[tuple[BlockIdentity, Content]]
    rows: Tensor
    mark: Mark


class BlockSaver:
    """Passes new blocks, or states, to their writer. `root` is the parent's digest of every first
    block."""

    def __init__(
        self,
        stores: Stores,
        transfers: Transfers,
        rows: BlockRows,
        root: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._writer = stores.store, stores.writer
        self._patience_s = OFFERED_PATIENCE_S if stores.is_offered else PATIENCE_S
        self._transfers = transfers
        self._rows = rows
        self._root = root
        self._clock = clock
        self._waiting: dict[bytes, _Block] = {}
        self._since_s = 0.0
        self._copied: deque[_Copied] = deque()

    @property
    def has_work(self) -> bool:
        """Whether blocks wait to be copied, or are being copied."""
        return bool(self._waiting or self._copied)

    @property
    def since_s(self) -> float:
        """The time since which the oldest block has waited, about."""
        return self._since_s

    @property
    def lacks_room(self) -> bool:
        """Whether blocks wait because the writer is behind."""
        return bool(self._waiting) and not self._max_rows()

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` until `flush` can continue."""
        if self._copied:
            time.sleep(min(seconds, COPY_S))
        elif self._waiting:
            self._writer.wait_for_room(self._rows.row_bytes, seconds)

    def note(self, content: Content, group: int) -> None:
        """Note that a block of this group can be found from now on."""
        key = group_key(content.digest, group)
        if self._store.has(key):
            return
        if not self._waiting:
            self._since_s = self._clock()
        self._waiting[key] = _Block(content, group)
        if len(self._waiting) > MAX_UNSAVED:
            del self._waiting[next(iter(self._waiting))]
            self._store.counts.add(num_dropped=1)

    def flush(self, *, is_idle: bool) -> None:
        """Copy some waiting blocks, and write copied ones."""
        while self._copied and self._copied[0].mark.is_reached:
            self._write(self._copied.popleft())
        if not self._waiting or len(self._copied) >= MAX_COPIED:
            return
        if self._store.is_paused:
            self._store.counts.add(num_dropped=len(self._waiting))
            self._waiting.clear()
            return
        is_due = self._clock() - self._since_s >= self._patience_s
        if is_idle or is_due or len(self._waiting) >= self._rows.max_rows:
            self._copy(self._max_rows())

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget these blocks, if they wait."""
        for key in keys:
            self._waiting.pop(key, None)

    def clear(self) -> None:
        """Forget all that waits."""
        self._waiting.clear()
        self._copied.clear()

    def _max_rows(self) -> int:
        return min(self._writer.num_rows(self._rows.row_bytes), self._rows.max_rows)

    def _copy(self, max_rows: int) -> None:
        """Copy the oldest waiting blocks to rows; count evicted ones."""
        block_ids: list[int] = []
        blocks: list[tuple[BlockIdentity, Content]] = []
        num_gone = 0
        while self._waiting and len(blocks) < max_rows:
            key = next(iter(self._waiting))
            content, group = self._waiting.pop(key)
            block_id = self._transfers.row_of(content, group)
            if block_id is None:
                num_gone += 1
            else:
                block_ids.append(block_id)
                blocks.append((identity_of(content, group, self._root), content))
        self._since_s = self._clock()
        if num_gone:
            self._store.counts.add(num_dropped=num_gone)
        if blocks:
            rows = self._rows.new_rows(len(blocks))
            self._copied.append(_Copied(blocks, rows, self._rows.read(block_ids, rows)))
            if self._copied[0].mark.is_reached:
                self._write(self._copied.popleft())

    def _write(self, copied: _Copied) -> None:
        views = row_views(copied.rows, len(copied.blocks))
        self._writer.offer(
            UnsavedBlock(identity, content, row)
            for (identity, content), row in zip(copied.blocks, views, strict=True)
        )


class RowSavers:
    """The savers of blocks and of states. What waits longer for the room of the writer is first, so
    that neither keeps the other from it."""

    def __init__(
        self, stores: Stores, port: BlockPort, root: bytes, clock: Callable[[], float]
    ) -> None:
        kinds = {False: port.block_rows, True: port.state_rows}
        self._savers = {
            is_state: BlockSaver(stores, port.transfers, rows, root, clock)
            for is_state, rows in kinds.items()
            if rows is not None
        }

    @property
    def has_work(self) -> bool:
        """Whether anything waits to be copied, or is being copied."""
        return any(each.has_work for each in self._savers.values())

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` until `flush` can continue."""
        next(each for each in self._savers.values() if each.has_work).wait(seconds)

    def note(self, content: Content, group: int) -> None:
        """Note that a block of this group, or a state, can be found from now on."""
        self._savers[group == STATE_GROUP].note(content, group)

    def flush(self, *, is_idle: bool) -> None:
        """Copy some of what waits, and write what was copied."""
        for each in sorted(self._savers.values(), key=lambda each: each.since_s):
            each.flush(is_idle=is_idle)
            if each.lacks_room:
                return

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget these blocks and states, if they wait."""
        for each in self._savers.values():
            each.drop(keys)

    def clear(self) -> None:
        """Forget all that waits."""
        for each in self._savers.values():
            each.clear()
