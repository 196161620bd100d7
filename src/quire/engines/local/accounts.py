"""The accounts of the engines of one model on this machine, as those of one engine and of each."""

from collections.abc import Mapping, Set
from dataclasses import fields, replace
from typing import Generic

from quire.engines.ray.accounts import ReplicaAccounts, counts_of
from quire.scheduler.step import NO_STATS, Stats, together
from quire.storage.disk import counts as disk_counts
from quire.storage.disk.counts import NO_DISK, DiskStats, StatsT
from quire.storage.network import counts as transfer_counts
from quire.storage.network.counts import NO_TRANSFER, TransferStats


class Increments(Generic[StatsT]):
    """Adds up what several engines have counted since the last new beginning; `gauges` are those of
    the engine that has told last: all see one folder."""

    def __init__(self, nothing: StatsT, gauges: Set[str]) -> None:
        self._nothing = nothing
        self._gauges = gauges
        self._last: dict[str, StatsT] = {}
        self._total = nothing

    def take(self, engine: str, now: StatsT) -> StatsT:
        """Take what an engine tells, and return the accounts of all."""
        last, total = self._last.get(engine, self._nothing), self._total
        self._last[engine] = now
        names = [each.name for each in fields(now) if each.name not in self._gauges]
        for name in names:
            more = getattr(now, name) - getattr(last, name)
            total = replace(total, **{name: getattr(total, name) + more})
        gauges = {name: getattr(now, name) for name in self._gauges}
        self._total = replace(total, **gauges)
        return self._total

    def lose(self, engine: str) -> None:
        """Note that an engine has ended; all is counted from here on."""
        self._last.pop(engine, None)
        self._total = self._nothing


class EngineAccounts:
    """Adds up what engines tell, which are named by their numbers. What one has counted stays
    counted under its number when another follows it."""

    def __init__(self) -> None:
        self._accounts = ReplicaAccounts()
        self._before: dict[str, Stats] = {}
        self._disk: Increments[DiskStats] = Increments(NO_DISK, disk_counts.GAUGES)
        self._transfer: Increments[TransferStats] = Increments(NO_TRANSFER, transfer_counts.GAUGES)

    @property
    def by_engine(self) -> Mapping[str, Stats]:
        """The accounts of each engine, with those before it."""
        now = self._accounts.by_replica
        return {
            name: together(self._before.get(name, NO_STATS), now.get(name, NO_STATS))
            for name in {*self._before, *now}
        }

    @property
    def total(self) -> Stats:
        """The accounts of all together, counted since an engine was last lost."""
        return self._accounts.total

    def begin(self, engine: str, num_blocks: int) -> None:
        """Note that an engine is ready, all of whose blocks are free."""
        self._accounts.take(engine, NO_STATS._replace(num_blocks_free=num_blocks))

    def take(self, engine: str, stats: Stats) -> None:
        """Take what an engine tells."""
        self._accounts.take(engine, stats)

    def take_disk(self, engine: str, disk: DiskStats | None) -> DiskStats | None:
        """Take what an engine tells of the disk; return the accounts of all, counted likewise."""
        return None if disk is None else self._disk.take(engine, disk)

    def take_transfer(self, engine: str, transfer: TransferStats | None) -> TransferStats | None:
        """Take what an engine tells of blocks of others; return the accounts of all likewise."""
        return None if transfer is None else self._transfer.take(engine, transfer)

    def lose(self, engine: str) -> None:
        """Note that an engine has ended."""
        gone = counts_of(self._accounts.by_replica.get(engine, NO_STATS))
        self._before[engine] = together(self._before.get(engine, NO_STATS), gone)
        self._accounts.lose(engine)
        self._disk.lose(engine)
        self._transfer.lose(engine)

    def begin_anew(self) -> None:
        """Count from here on."""
        self._accounts.begin_anew()
