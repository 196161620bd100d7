"""The index of a folder's extents and blocks, in memory: the present extents, and the order of
eviction at the limit of the folder. It is shared by the threads of one process."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple, TypeAlias

from quire.storage.disk.extent_file import Extent

OnKey: TypeAlias = Callable[[bytes, bool], None]
"""Takes a key, and whether a block is found under it from now on or no more."""


class BlockLocation(NamedTuple):
    """The extent that has a block, and the block's position there."""

    extent: Extent
    position: int


class ScannedExtent(NamedTuple):
    """An extent that a scan has seen, and when it was last of use, in seconds since the epoch."""

    extent: Extent
    used_s: float


@dataclass(slots=True)
class _Entry:
    """An extent, when it was last of use, and how many of its blocks can be."""

    extent: Extent
    used_s: float
    num_blocks: int


class Index:
    """The extents of all models, the least recently used first, and where the blocks of one model
    are: the others' come without keys, which may be the same. A block may be in several extents,
    since replicas write by themselves.

    A scan takes its time, and the folder changes meanwhile: what this process added and removed
    since `begin_scan` is known better than what the scan has seen.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._extents: dict[bytes, tuple[Extent, ...]] = {}
        self._lock = Lock()
        self._num_blocks = 0
        self._num_bytes = 0
        self._is_scanning = False
        self._added: set[str] = set()
        self._removed: set[str] = set()
        self._watchers: list[OnKey] = []

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __contains__(self, key: bytes) -> bool:
        return key in self._extents

    def spot(self, key: bytes) -> BlockLocation | None:
        """Return the place of a block, None if it is unknown."""
        extents = self._extents.get(key)
        return None if extents is None else BlockLocation(extents[0], extents[0].keys.index(key))

    def spots(self, key: bytes) -> list[BlockLocation]:
        """Return all places of a block."""
        return [BlockLocation(each, each.keys.index(key)) for each in self._extents.get(key, ())]

    def used_s(self, key: bytes) -> float | None:
        """Return when the extent of a block was last of use, None if it is not here."""
        extents = self._extents.get(key)
        entry = None if extents is None else self._entries.get(extents[0].name)
        return None if entry is None else entry.used_s

    def watch(self, on_key: OnKey) -> list[bytes]:
        """Call `on_key` for each key that is found from now on, or no more, until `unwatch`; return
        those that are found now. The caller that changes the index holds a lock."""
        with self._lock:
            self._watchers.append(on_key)
            return list(self._extents)

    def unwatch(self, on_key: OnKey) -> None:
        """Call `on_key` no more."""
        with self._lock:
            self._watchers.remove(on_key)

    def extent_named(self, name: str) -> Extent | None:
        """Return the extent of this name, None if it is not known."""
        entry = self._entries.get(name)
        return None if entry is None else entry.extent

    def add(self, extent: Extent, now: float) -> list[Extent]:
        """Add a written extent, and return the extents to evict for it."""
        with self._lock:
            self._put(ScannedExtent(extent, now))
            if self._is_scanning:
                self._removed.discard(extent.name)
                self._added.add(extent.name)
            return self._take_excess()

    def renew(self, name: str, now: float) -> None:
        """Note that an extent was of use."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.used_s = now
                self._entries.move_to_end(name)

    def remove_block(self, key: bytes, extent: Extent) -> bool:
        """Note that a block of an extent is not of use; return whether that was the last one, and
        the extent is not here any more."""
        with self._lock:
            entry = self._entries.get(extent.name)
            if entry is None or not self._forget(key, extent):
                return False
            entry.num_blocks -= 1
            self._num_blocks -= 1
            if entry.num_blocks:
                return False
            self._remove(extent)
            return True

    def remove_all(self, prefix: str) -> None:
        """Note that no extent whose name begins so is there, whatever a scan has seen until now."""
        with self._lock:
            self._is_scanning = False
            for entry in [*self._entries.values()]:
                if entry.extent.name.startswith(prefix):
                    self._remove(entry.extent)

    def begin_scan(self) -> None:
        """Begin to note changes while the folder is read."""
        with self._lock:
            self._is_scanning = True
            self._added, self._removed = set(), set()

    def end_scan(self, seen: Iterable[ScannedExtent]) -> list[Extent]:
        """Apply the result of a scan, unless `remove_all` voided it, and return the extents to
        delete. A known extent keeps the facts about its blocks."""
        with self._lock:
            if not self._is_scanning:
                return []
            self._is_scanning = False
            by_name = {each.extent.name: each for each in seen}
            for name, entry in [*self._entries.items()]:
                if name not in by_name and name not in self._added:
                    self._remove(entry.extent)
            for each in by_name.values():
                self._take_in(each)
            ordered = sorted(self._entries.items(), key=lambda pair: pair[1].used_s)
            self._entries = OrderedDict(ordered)
            return self._take_excess()

    def _take_in(self, seen: ScannedExtent) -> None:
        name = seen.extent.name
        known = self._entries.get(name)
        if known is not None and (known.extent is seen.extent or name in self._added):
            known.used_s = max(known.used_s, seen.used_s)
        elif name not in self._removed:
            self._put(seen)

    def _put(self, seen: ScannedExtent) -> None:
        extent = seen.extent
        known = self._entries.get(extent.name)
        if known is not None:
            self._remove(known.extent)
        keys = dict.fromkeys(filter(None, extent.keys))
        entry = _Entry(extent, seen.used_s, len(keys) or extent.num_blocks)
        self._entries[extent.name] = entry
        self._num_bytes += extent.num_bytes
        self._num_blocks += entry.num_blocks
        alone = (extent,)
        for key in keys:
            others = self._extents.get(key, ())
            self._extents[key] = others + alone
            if not others:
                self._tell(key, is_here=True)

    def _remove(self, extent: Extent) -> None:
        entry = self._entries.pop(extent.name, None)
        if self._is_scanning:
            self._added.discard(extent.name)
            self._removed.add(extent.name)
        if entry is None:
            return
        self._num_bytes -= entry.extent.num_bytes
        self._num_blocks -= entry.num_blocks
        for key in filter(None, entry.extent.keys):
            self._forget(key, entry.extent)

    def _forget(self, key: bytes, extent: Extent) -> bool:
        """Note that a block is not in this extent; return whether it was."""
        extents = self._extents.get(key, ())
        left = tuple(each for each in extents if each is not extent)
        if left:
            self._extents[key] = left
        elif self._extents.pop(key, None):
            self._tell(key, is_here=False)
        return len(left) < len(extents)

    def _tell(self, key: bytes, *, is_here: bool) -> None:
        for on_key in self._watchers:
            on_key(key, is_here)

    def _take_excess(self) -> list[Extent]:
        excess = []
        while self._num_bytes > self._max_bytes and self._entries:
            entry = next(iter(self._entries.values()))
            self._remove(entry.extent)
            excess.append(entry.extent)
        return excess
