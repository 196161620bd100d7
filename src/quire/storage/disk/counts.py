"""The accounts of a store of blocks on disk, and counts that several threads add to."""

from collections.abc import Set
from dataclasses import Field, dataclass, fields, replace
from threading import Lock
from typing import ClassVar, Generic, Protocol, TypeVar


class Accounts(Protocol):
    """A dataclass whose fields are numbers."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


StatsT = TypeVar("StatsT", bound=Accounts)

GAUGES = frozenset(("num_blocks", "num_bytes", "is_paused"))
"""The fields that are gauges."""


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The accounts of the prefix cache on disk: the known content of its folder, and the operations
    since the start. A state of recurrent layers counts as a block.

    Of the blocks that prompts lacked in memory, `num_hits` were in the index and read,
    `num_declined` were there and computed sooner, and `num_misses` were not there.
    `num_loaded_tokens` came into memory. Of blocks, `num_written` were written, `num_dropped` were
    not since the disk was behind or they were evicted first, `num_failed` failed, `num_corrupt`
    could not be used and `num_evicted` were deleted for others. `is_paused` says that nothing is
    written for a while, since the disk has failed.
    """

    num_blocks: int = 0
    num_bytes: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_declined: int = 0
    num_loaded_tokens: int = 0
    num_read: int = 0
    num_written: int = 0
    num_dropped: int = 0
    num_failed: int = 0
    num_corrupt: int = 0
    num_evicted: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    is_paused: bool = False

    def after(self, before: "DiskStats") -> "DiskStats":
        """Return these statistics with the counters of `before` added."""
        return summed(before, self, GAUGES)


NO_DISK = DiskStats()


def summed(before: StatsT, after: StatsT, gauges: Set[str]) -> StatsT:
    """Return accounts as they are `after`, with all but the gauges of those `before` added."""
    names = [each.name for each in fields(after) if each.name not in gauges]
    sums = {name: getattr(after, name) + getattr(before, name) for name in names}
    return replace(after, **sums)


class ThreadSafeCounts(Generic[StatsT]):
    """Counts that several threads add to, in accounts that begin as `stats`."""

    def __init__(self, stats: StatsT) -> None:
        self._stats = stats
        self._lock = Lock()

    def add(self, **counts: float) -> None:
        """Add to the fields of these names."""
        with self._lock:
            old = self._stats
            self._stats = replace(
                old, **{name: getattr(old, name) + count for name, count in counts.items()}
            )

    def stats(self, **gauges: float) -> StatsT:
        """Return the accounts of this moment, with the fields of these names as they are now."""
        return replace(self._stats, **gauges)
