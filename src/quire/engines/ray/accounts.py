"""The accounts of all replicas of a model, as if they were those of one engine."""

from collections.abc import Mapping
from functools import reduce

from quire.scheduler.step import GAUGES, NO_STATS, Stats, together


def counts_of(stats: Stats) -> Stats:
    """Return the accounts without gauges."""
    return stats._replace(**dict.fromkeys(GAUGES, 0))


class ReplicaAccounts:
    """Adds up what replicas tell. What an engine has counted stays counted when it ends.

    A reader who adds counts of engines that have ended himself says so by `begin_anew`: `total`
    counts from there on.
    """

    def __init__(self) -> None:
        self._now: dict[str, Stats] = {}
        self._gone = NO_STATS
        self._told = NO_STATS

    @property
    def by_replica(self) -> Mapping[str, Stats]:
        """The accounts of each replica's engine."""
        return self._now

    @property
    def total(self) -> Stats:
        """The accounts of all together, counted since the last new beginning."""
        sums = reduce(together, self._now.values(), self._gone)
        less = {name: getattr(sums, name) - getattr(self._told, name) for name in _COUNTS}
        return sums._replace(**less)

    def take(self, replica: str, stats: Stats) -> None:
        """Take what a replica tells of its engine."""
        self._now[replica] = stats

    def lose(self, replica: str) -> None:
        """Note that the engine of a replica, or all of it, has ended."""
        self._gone = together(self._gone, counts_of(self._now.pop(replica, NO_STATS)))

    def begin_anew(self) -> None:
        """Count from here on."""
        self._told = counts_of(reduce(together, self._now.values(), self._gone))


_COUNTS = tuple(name for name in Stats._fields if name not in GAUGES)
