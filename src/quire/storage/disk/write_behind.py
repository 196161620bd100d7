"""Writes blocks in the background. Blocks that do not fit in its queue are dropped, so the caller
never waits."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread
from typing import NamedTuple

from quire.cache.block_hash import STATE_GROUP, group_key
from quire.cache.chain import Content
from quire.storage.disk.block_header import BlockIdentity
from quire.storage.disk.store import BlockStore

MAX_QUEUED_BYTES = 64 << 20
MAX_BYTES_S = 256 << 20
"""No more is written in the long run, so that a cache that changes all the time does not wear its
disk out."""
RESCAN_S = 60.0
"""The interval of scans for changes of other processes, in seconds."""
MAX_SCAN_SHARE = 0.01
"""A large folder is scanned more rarely, so that scans take no more of the time than this."""
CLOSE_S = 2.0
"""Seconds that an ending engine waits for queued blocks."""


class UnsavedBlock(NamedTuple):
    """A block to be written; its parents, which `content` names, are renewed with it."""

    identity: BlockIdentity
    content: Content
    row: memoryview

    def is_followed_by(self, other: "UnsavedBlock") -> bool:
        """Return whether the other block comes next in the same chain and layer group."""
        group, others = (
            each.identity.key.removeprefix(each.content.digest) for each in (self, other)
        )
        return group == others and other.identity.parent == self.content.digest


class WriteBehind:
    """One thread that writes to a store, and scans its folder at the start and now and then."""

    def __init__(self, store: BlockStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._queue: deque[tuple[int, Sequence[UnsavedBlock]]] = deque()
        self._stale: deque[Content] = deque()
        self._dropped: deque[bytes] = deque()
        self._changed = Condition()
        self._queued_bytes = 0
        self._allowance = float(MAX_BYTES_S)
        self._allowed_s = clock()
        self._is_scanned = False
        self._is_closed = False
        self._thread = Thread(target=self._run, name="prefix cache writer", daemon=True)
        self._thread.start()

    def num_rows(self, row_bytes: int) -> int:
        """Return how many rows of this size may be offered now; 0 while the disk is behind or
        writing pauses. One is taken by an empty queue, however large it is."""
        if self._store.is_paused:
            return 0
        self._allow()
        if not self._queued_bytes and self._allowance >= min(row_bytes, MAX_BYTES_S):
            return max(min(MAX_QUEUED_BYTES, int(self._allowance)) // row_bytes, 1)
        room = min(MAX_QUEUED_BYTES - self._queued_bytes, int(self._allowance))
        return max(room, 0) // row_bytes

    @property
    def is_writing(self) -> bool:
        """Whether blocks are queued."""
        return self._queued_bytes > 0

    def offer(self, blocks: Iterable[UnsavedBlock]) -> None:
        """Queue blocks to be written, which are of the store's epoch now. Their rows must not
        change. Those that follow one another are written as one."""
        with self._changed:
            for run in _runs(blocks):
                self._queue.append((self._store.epoch, run))
                num_bytes = _num_bytes(run)
                self._queued_bytes += num_bytes
                self._allowance -= num_bytes
            self._changed.notify_all()

    def renew(self, content: Content) -> None:
        """Renew a block and its predecessors in the background."""
        with self._changed:
            self._stale.append(content)
            self._changed.notify_all()

    def drop(self, keys: Iterable[bytes]) -> None:
        """Erase blocks in the background, after the queued writes."""
        with self._changed:
            self._dropped.extend(keys)
            self._changed.notify_all()

    def wait_for_room(self, row_bytes: int, seconds: float) -> None:
        """Wait until a row of this size fits in the queue, or writing pauses, for at most the given
        seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.num_rows(row_bytes) > 0 or self._store.is_paused, seconds
            )

    def wait_until_scanned(self, seconds: float) -> bool:
        """Wait for the first scan, for at most `seconds`; return whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_scanned, seconds)

    def wait_until_written(self, seconds: float) -> bool:
        """Wait until the queue is empty, for at most `seconds`; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, seconds)

    def close(self) -> None:
        """Write queued blocks for at most CLOSE_S, and nothing afterwards."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _allow(self) -> None:
        now = self._clock()
        grown = self._allowance + (now - self._allowed_s) * MAX_BYTES_S
        self._allowance, self._allowed_s = min(grown, float(MAX_BYTES_S)), now

    def _run(self) -> None:
        """Scan, and process the queue, until all is written after `close`."""
        next_scan_s = self._clock()
        while True:
            if self._clock() >= next_scan_s and not self._is_closed:
                began_s = self._clock()
                self._store.rescan()
                now = self._clock()
                next_scan_s = now + max(RESCAN_S, (now - began_s) / MAX_SCAN_SHARE)
                with self._changed:
                    self._is_scanned = True
                    self._changed.notify_all()
            with self._changed:
                while not (self._queue or self._stale or self._dropped or self._is_closed):
                    if not self._changed.wait(max(next_scan_s - self._clock(), 0.0)):
                        break
                if self._is_closed and not self._queue:
                    return
            self._do_next()

    def _do_next(self) -> None:
        """Renew and write one queued item; erasures wait for all writes."""
        if self._stale:
            self._renew_all(self._stale.popleft())
        if self._queue:
            self._write(*self._queue.popleft())
        elif self._dropped:
            self._store.drop(self._dropped.popleft() for _ in range(len(self._dropped)))

    def _write(self, epoch: int, run: Sequence[UnsavedBlock]) -> None:
        identities, rows = [each.identity for each in run], [each.row for each in run]
        parent = run[0].content.parent
        if self._store.is_paused or epoch != self._store.epoch:
            self._store.counts.add(num_dropped=len(run))
        elif self._store.put(identities, rows, epoch) and parent is not None:
            self._renew_all(parent)
        with self._changed:
            self._queued_bytes -= _num_bytes(run)
            self._changed.notify_all()

    def _renew_all(self, content: Content) -> None:
        """Renew a block and its predecessors, down to one that was renewed already, and the state
        after it. An extent is of one chain: with any of its blocks all that is before it was
        noted."""
        stale = [group_key(content.digest, STATE_GROUP)]
        above: Content | None = content
        while above is not None and self._store.is_stale(above.digest):
            stale.append(above.digest)
            above = above.parent
        for digest in stale:
            self._store.renew(digest)


def _runs(blocks: Iterable[UnsavedBlock]) -> list[list[UnsavedBlock]]:
    """Return the blocks grouped by adjacent ones in a chain."""
    runs: list[list[UnsavedBlock]] = []
    for block in blocks:
        if runs and runs[-1][-1].is_followed_by(block):
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


def _num_bytes(run: Sequence[UnsavedBlock]) -> int:
    return sum(len(block.row) for block in run)
