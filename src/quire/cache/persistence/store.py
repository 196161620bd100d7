"""The store of one model's blocks in a folder that others share. It is used by several threads.

Nothing that is wrong with the folder is an error for who asks: a block that cannot be read is
missing, and one that cannot be written is not there. After a failed write there is a pause, which
grows while failures last.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from quire.cache.persistence.block_file import (
    BlockIdentity,
    Found,
    file_bytes,
    header_of,
    read_block,
    write_block,
)
from quire.cache.persistence.counts import DiskCounts, DiskStats
from quire.cache.persistence.files import (
    block_name,
    make_folders,
    model_folder,
    move_to_trash,
    scan,
    temporary_name,
)
from quire.cache.persistence.index import Index

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
WARNED_AFTER_S = 600.0
"""The time after which a failure is logged again."""
RENEWED_AFTER_S = 60.0
"""A block that was noted to be of use is not noted again before."""


class BlockStore:
    """Keeps blocks under `root` for the model of `fingerprint`, up to about `max_bytes` over all
    models. `clock` gives seconds since the epoch.

    A folder that was opened before is empty until it is scanned. What a reset voids is told by the
    `epoch`: blocks of an older one are not written.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.epoch = 0
        self.counts = DiskCounts()
        self._root = root
        self._fingerprint = fingerprint
        self._folder = model_folder(fingerprint)
        self._index = Index(max_bytes)
        self._clock = clock
        self._commit = Lock()
        self._pause_s = 0.0
        self._paused_until_s = 0.0
        self._warned_s = -math.inf
        self._is_shut = False

    @property
    def stats(self) -> DiskStats:
        index = self._index
        return self.counts.stats(
            num_blocks=index.num_blocks, num_bytes=index.num_bytes, is_paused=self.is_paused
        )

    @property
    def num_blocks(self) -> int:
        """The blocks of all models that are known."""
        return self._index.num_blocks

    @property
    def is_paused(self) -> bool:
        """Whether nothing is written now, since the disk has failed."""
        now = self._clock()
        return now < self._paused_until_s <= now + MAX_PAUSE_S

    def has(self, key: bytes) -> bool:
        """Return whether a block is there, as far as is known."""
        return self._name(key) in self._index and not self._is_shut

    def is_stale(self, key: bytes) -> bool:
        """Return whether a block is there and was not noted to be of use for a while."""
        used_s = self._index.used_s(self._name(key))
        return used_s is not None and abs(self._clock() - used_s) > RENEWED_AFTER_S

    def get(self, identity: BlockIdentity, row: memoryview) -> bool:
        """Read a block into `row`; return False, and `row` means nothing, where it is not there or
        not what it should be. What is damaged is deleted."""
        name = self._name(identity.key)
        path = self._root / name
        began = time.perf_counter()
        header = header_of(self._fingerprint, identity, len(row))
        try:
            found = Found.MISSING if self._is_shut else read_block(str(path), header, row)
        except OSError as error:
            self._note_failure("read", error)
            found = Found.MISSING
        seconds = time.perf_counter() - began
        if found is Found.WHOLE:
            self.counts.add(num_read=1, read_bytes=len(row), read_s=seconds)
            self.renew(identity.key)
            return True
        self._index.remove(name)
        if found is Found.BAD:
            self.counts.add(num_corrupt=1)
            self._delete(name)
        return False

    def put(self, identity: BlockIdentity, row: memoryview, epoch: int) -> bool:
        """Write a block, and delete the least recently used ones for it; return whether it is there
        now. It is not where the disk fails, or where all was reset since `epoch`."""
        name = self._name(identity.key)
        if name in self._index:
            return True
        began = time.perf_counter()
        header = header_of(self._fingerprint, identity, len(row))
        try:
            self._write(name, header, row)
        except OSError as error:
            self._note_failure("written", error)
            self._pause()
            return False
        self._pause_s = 0.0
        return self._enter(name, file_bytes(header, len(row)), epoch, began)

    def renew(self, key: bytes) -> None:
        """Note for all processes that a block is of use, unless that was done lately."""
        if not self.is_stale(key):
            return
        name, now = self._name(key), self._clock()
        self._index.renew(name, now)
        with suppress(OSError):
            os.utime(self._root / name, (now, now))

    def drop(self, key: bytes) -> None:
        """Delete a block, if it is there."""
        name = self._name(key)
        if name in self._index:
            self._index.remove(name)
            self._delete(name)

    def rescan(self) -> None:
        """Take in what others have written and deleted, and delete what is too much."""
        self._index.begin_scan()
        self._evict(self._index.end_scan(list(scan(self._root))))

    def reset(self) -> None:
        """Make all blocks of the model unfindable, for this process and all that share the folder.
        Where that cannot be done nothing is read or written any more."""
        with self._commit:
            self.epoch += 1
            try:
                move_to_trash(self._root, self._folder)
            except OSError as error:
                self._is_shut = True
                logger.warning(
                    "the prefix cache in %s cannot be reset and is not used any more: %s",
                    self._root,
                    error,
                )
            self._index.remove_all(f"{self._folder}/")

    def _name(self, key: bytes) -> str:
        return block_name(self._folder, key)

    def _write(self, name: str, header: bytes, row: memoryview) -> None:
        path, temporary = str(self._root / name), str(self._root / temporary_name(name))
        try:
            write_block(path, temporary, header, row)
        except FileNotFoundError:
            make_folders(self._root, name)
            write_block(path, temporary, header, row)

    def _enter(self, name: str, num_bytes: int, epoch: int, began: float) -> bool:
        """Let a block be found that was written, unless all was reset meanwhile."""
        with self._commit:
            is_current = epoch == self.epoch and not self._is_shut
            excess = self._index.add(name, num_bytes, self._clock()) if is_current else [name]
        self._evict(excess)
        self.counts.add(num_written=1, written_bytes=num_bytes, write_s=time.perf_counter() - began)
        return is_current and name not in excess

    def _evict(self, names: list[str]) -> None:
        for name in names:
            self._delete(name)
        if names:
            self.counts.add(num_evicted=len(names))

    def _delete(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._root / name)

    def _note_failure(self, what: str, error: OSError) -> None:
        """Count a failure, and log one from time to time."""
        self.counts.add(num_failed=1)
        now = self._clock()
        if abs(now - self._warned_s) > WARNED_AFTER_S:
            self._warned_s = now
            logger.warning("a block of the prefix cache cannot be %s: %s", what, error)

    def _pause(self) -> None:
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
        self._paused_until_s = self._clock() + self._pause_s
