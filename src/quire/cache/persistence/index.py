"""The index of a folder's blocks, in memory: what is there, and what is deleted first when it is
more than the folder may hold. It is shared by the threads of one process.
"""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from quire.cache.persistence.files import StoredFile


class _Entry(NamedTuple):
    num_bytes: int
    used_s: float


class Index:
    """The names and bytes of blocks, the least recently used first.

    A scan takes its time, and the folder changes meanwhile: what this process added and removed
    since `begin_scan` is known better than what the scan has seen.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = Lock()
        self._num_bytes = 0
        self._is_scanning = False
        self._added: dict[str, _Entry] = {}
        self._removed: set[str] = set()

    @property
    def num_blocks(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def used_s(self, name: str) -> float | None:
        """Return when the block was last of use, None if it is not here."""
        entry = self._entries.get(name)
        return None if entry is None else entry.used_s

    def add(self, name: str, num_bytes: int, now: float) -> list[str]:
        """Add a block that was written, and return those that are to be deleted for it."""
        with self._lock:
            self._put(name, _Entry(num_bytes, now))
            return self._take_excess()

    def renew(self, name: str, now: float) -> None:
        """Note that a block was of use."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                self._put(name, entry._replace(used_s=now))

    def remove(self, name: str) -> None:
        """Note that a block is not there, or not of use."""
        with self._lock:
            self._remove(name)

    def remove_all(self, prefix: str) -> None:
        """Note that no block whose name begins so is there, whatever a scan has seen until now."""
        with self._lock:
            self._is_scanning = False
            for name in [name for name in self._entries if name.startswith(prefix)]:
                self._remove(name)

    def begin_scan(self) -> None:
        """Begin to note what changes while the folder is read."""
        with self._lock:
            self._is_scanning = True
            self._added, self._removed = {}, set()

    def end_scan(self, found: Iterable[StoredFile]) -> list[str]:
        """Take in what a scan has found, unless `remove_all` voided it, and return what is to be
        deleted."""
        ordered = sorted(found, key=lambda file: file.used_s)
        with self._lock:
            if not self._is_scanning:
                return []
            self._is_scanning = False
            entries = OrderedDict(
                (file.name, _Entry(file.num_bytes, file.used_s))
                for file in ordered
                if file.name not in self._removed and file.name not in self._added
            )
            entries.update(self._added)
            self._entries = entries
            self._num_bytes = sum(entry.num_bytes for entry in entries.values())
            return self._take_excess()

    def _put(self, name: str, entry: _Entry) -> None:
        self._remove(name)
        self._entries[name] = entry
        self._num_bytes += entry.num_bytes
        if self._is_scanning:
            self._removed.discard(name)
            self._added[name] = entry

    def _remove(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._num_bytes -= entry.num_bytes
        if self._is_scanning:
            self._added.pop(name, None)
            self._removed.add(name)

    def _take_excess(self) -> list[str]:
        excess = []
        while self._num_bytes > self._max_bytes and self._entries:
            name = next(iter(self._entries))
            self._remove(name)
            excess.append(name)
        return excess
