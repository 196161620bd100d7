"""The store of one model's blocks in a folder that others share. It is used by several threads.

A failure of the folder is not an error for the caller: a block that cannot be read is missing, and
one that cannot be written is not there. After a failed write there is a pause, which grows while
failures last.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from quire.storage.disk.block_header import BlockIdentity, digest_of_keys, header_of
from quire.storage.disk.counts import NO_DISK, DiskStats, ThreadSafeCounts
from quire.storage.disk.extent_file import (
    Block,
    BlockRequest,
    Extent,
    LookupOutcome,
    StoredBlock,
    erase_blocks,
    extent_of,
    read_blocks,
    read_extent,
    without_keys,
    write_extent,
)
from quire.storage.disk.files import (
    ExtentFile,
    extent_name,
    make_folders,
    model_folder,
    move_to_trash,
    scan,
    temporary_name,
)
from quire.storage.disk.index import Index, OnKey, ScannedExtent

logger = logging.getLogger(__name__)

MAX_EXTENT_BLOCKS = 64
MIN_EXTENTS = 4
"""The minimum number of largest extents that fit in the folder, so that an eviction does not empty
it."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
WARNED_AFTER_S = 600.0
"""The time after which a failure is logged again."""
RENEWED_AFTER_S = 60.0
"""An extent that was noted to be of use is not noted again before."""


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
        self.counts = ThreadSafeCounts(NO_DISK)
        self._root = root
        self._fingerprint = fingerprint
        self._folder = model_folder(fingerprint)
        self._max_bytes = max_bytes
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
        return key in self._index and not self._is_shut

    def watch(self, on_key: OnKey) -> list[bytes]:
        """Call `on_key` for each key that is found from now on, or no more, until `unwatch`; return
        those that are found now. It must be quick, and is called by several threads."""
        return self._index.watch(on_key)

    def unwatch(self, on_key: OnKey) -> None:
        """Call `on_key` no more."""
        self._index.unwatch(on_key)

    def stored(self, key: bytes) -> StoredBlock | None:
        """Return the known place of a block; None if there is none."""
        spot = None if self._is_shut else self._index.spot(key)
        if spot is None:
            return None
        extent, position = spot
        return StoredBlock(
            self._path(extent),
            extent.entry_offset(position),
            extent.entry_bytes,
            extent.row_offset(position),
            extent.row_bytes,
        )

    def is_stale(self, key: bytes) -> bool:
        """Return whether a block is there, in an extent that was not noted to be of use for a
        while."""
        used_s = self._index.used_s(key)
        return used_s is not None and abs(self._clock() - used_s) > RENEWED_AFTER_S

    def get(self, identities: Sequence[BlockIdentity], rows: Sequence[memoryview]) -> int:
        """Read blocks into as many `rows`, up to the first that is not there or not what it should
        be, and return how many were read; the other rows mean nothing. Damaged blocks are erased.
        """
        began = time.perf_counter()
        blocks = self._blocks(identities, rows)
        asked: dict[Extent, list[BlockRequest]] = {}
        for block in blocks:
            spot = None if self._is_shut else self._index.spot(block.key)
            if spot is None:
                break
            asked.setdefault(spot.extent, []).append(BlockRequest(spot.position, block))
        whole = {key for extent, each in asked.items() for key in self._read(extent, each)}
        num_bytes = sum(len(block.row) for block in blocks if block.key in whole)
        seconds = time.perf_counter() - began
        self.counts.add(num_read=len(whole), read_bytes=num_bytes, read_s=seconds)
        return next((at for at, each in enumerate(blocks) if each.key not in whole), len(blocks))

    def put(
        self, identities: Sequence[BlockIdentity], rows: Sequence[memoryview], epoch: int
    ) -> bool:
        """Write blocks that follow one another in a chain, and delete the least recently used
        extents for them; return whether all are there now. They are not where the disk fails, or
        where all was reset since `epoch`."""
        blocks = [block for block in self._blocks(identities, rows) if block.key not in self._index]
        if not blocks:
            return True
        block_bytes = len(blocks[0].header) + len(blocks[0].row)
        size = min(max(self._max_bytes // MIN_EXTENTS // block_bytes, 1), MAX_EXTENT_BLOCKS)
        starts = range(0, len(blocks), size)
        return all(self._put(blocks[start : start + size], epoch) for start in starts)

    def renew(self, key: bytes) -> None:
        """Note for all processes that a block is of use, unless that was done lately."""
        spot = self._index.spot(key) if self.is_stale(key) else None
        if spot is None:
            return
        name, now = spot.extent.name, self._clock()
        self._index.renew(name, now)
        with suppress(OSError):
            os.utime(self._root / name, (now, now))

    def drop(self, keys: Iterable[bytes]) -> None:
        """Erase these blocks, if present."""
        positions: dict[Extent, list[int]] = {}
        for key in keys:
            for extent, position in self._index.spots(key):
                positions.setdefault(extent, []).append(position)
        for extent, erased in positions.items():
            self._erase(extent, erased)

    def rescan(self) -> None:
        """Apply the changes of other processes, and evict down to the limit."""
        self._index.begin_scan()
        seen = [each for file in scan(self._root) if (each := self._see(file)) is not None]
        self._evict(self._index.end_scan(seen))

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

    def _blocks(
        self, identities: Sequence[BlockIdentity], rows: Sequence[memoryview]
    ) -> list[Block]:
        return [
            Block(identity.key, header_of(self._fingerprint, identity, len(row)), row)
            for identity, row in zip(identities, rows, strict=True)
        ]

    def _path(self, extent: Extent) -> str:
        return str(self._root / extent.name)

    def _read(self, extent: Extent, asked: Sequence[BlockRequest]) -> list[bytes]:
        """Read blocks of an extent; return the keys of intact ones."""
        in_order = sorted(asked, key=lambda each: each.position)
        try:
            found = read_blocks(self._path(extent), extent, in_order)
        except OSError as error:
            self._note_failure("read", error, 1)
            found = [LookupOutcome.MISSING] * len(asked)
        pairs = list(zip(in_order, found, strict=True))
        whole = [each.block.key for each, how in pairs if how is LookupOutcome.WHOLE]
        for each, how in pairs:
            if how is LookupOutcome.MISSING:
                self._index.remove_block(each.block.key, extent)
        bad = [each.position for each, how in pairs if how is LookupOutcome.BAD]
        if bad:
            self.counts.add(num_corrupt=len(bad))
            self._erase(extent, bad)
        if whole:
            self.renew(whole[0])
        return whole

    def _put(self, blocks: Sequence[Block], epoch: int) -> bool:
        """Write an extent; return whether it is there now."""
        began = time.perf_counter()
        digest = digest_of_keys([block.key for block in blocks])
        extent = extent_of(extent_name(self._folder, digest), blocks)
        try:
            self._write(extent, blocks)
        except OSError as error:
            self._note_failure("written", error, len(blocks))
            self._pause()
            return False
        self._pause_s = 0.0
        return self._enter(extent, epoch, began)

    def _write(self, extent: Extent, blocks: Sequence[Block]) -> None:
        path, temporary = self._path(extent), str(self._root / temporary_name(extent.name))
        try:
            write_extent(path, temporary, extent, blocks)
        except FileNotFoundError:
            make_folders(self._root, extent.name)
            write_extent(path, temporary, extent, blocks)

    def _enter(self, extent: Extent, epoch: int, began: float) -> bool:
        """Let blocks be found that were written, unless all was reset meanwhile."""
        with self._commit:
            is_current = epoch == self.epoch and not self._is_shut
            excess = self._index.add(extent, self._clock()) if is_current else [extent]
        self._evict(excess)
        self.counts.add(
            num_written=extent.num_blocks,
            written_bytes=extent.num_bytes,
            write_s=time.perf_counter() - began,
        )
        return is_current and extent not in excess

    def _see(self, file: ExtentFile) -> ScannedExtent | None:
        """Return the extent in a file, None if it is missing. An invalid file is deleted if it
        belongs to this model, and otherwise left to other versions."""
        known = self._index.extent_named(file.name)
        if known is not None and known.num_bytes == file.num_bytes:
            return ScannedExtent(known, file.used_s)
        path, is_ours = self._root / file.name, file.name.startswith(f"{self._folder}/")
        try:
            extent = read_extent(str(path), file.name)
        except FileNotFoundError:
            return None
        except OSError:
            extent, is_ours = None, False
        if is_ours and extent is not None and any(extent.keys):
            return ScannedExtent(extent, file.used_s)
        if is_ours:
            self.counts.add(num_corrupt=int(extent is None))
            self._delete(file.name)
            return None
        return ScannedExtent(without_keys(file.name, file.num_bytes, extent), file.used_s)

    def _erase(self, extent: Extent, positions: Sequence[int]) -> None:
        """Erase blocks of an extent, and delete it with its last block."""
        keys = [extent.keys[position] for position in positions]
        if any([self._index.remove_block(key, extent) for key in keys]):
            self._delete(extent.name)
            return
        with suppress(OSError):
            erase_blocks(self._path(extent), extent, positions)

    def _evict(self, extents: Sequence[Extent]) -> None:
        for extent in extents:
            self._delete(extent.name)
        if extents:
            self.counts.add(num_evicted=sum(extent.num_blocks for extent in extents))

    def _delete(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._root / name)

    def _note_failure(self, what: str, error: OSError, num_blocks: int) -> None:
        """Count a failure, and log one from time to time."""
        self.counts.add(num_failed=num_blocks)
        now = self._clock()
        if abs(now - self._warned_s) > WARNED_AFTER_S:
            self._warned_s = now
            logger.warning("blocks of the prefix cache cannot be %s: %s", what, error)

    def _pause(self) -> None:
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
        self._paused_until_s = self._clock() + self._pause_s
