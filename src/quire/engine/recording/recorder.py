"""The flight recorder writes the scheduler's inputs to a ring, in segments that begin with a
snapshot, so that each can be replayed without the earlier ones."""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from quire.cache.block_hash import BlockHash
from quire.cache.snapshot.digest_numbers import DigestNumbers
from quire.engine.recording.frames import framed
from quire.engine.recording.inputs import Input
from quire.engine.recording.replayed_scheduler import CacheShape, SegmentStart, under_way
from quire.engine.recording.ring import NUM_SLOTS, RingWriter
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.snapshot.arrival import TenantNumbers
from quire.scheduler.snapshot.scheduler_snapshot import can_snapshot, snapshot_scheduler
from quire.scheduler.step import Step

logger = logging.getLogger(__name__)

RESERVE_BYTES = 256 << 10
"""A segment with less room than this is followed by another."""
LATE = 1.25
MAX_NEW_DIGESTS = 1 << 17
"""The number of hashed blocks after which a segment ends: all are remembered."""


class RecordedConfig(NamedTuple):
    """The configurations that a replay needs."""

    scheduler: SchedulerConfig
    cache: CacheShape


class FlightRecorder:
    """Records the inputs of one scheduler, whose cache must hash by `block_hash`.

    Segments last `segment_s` seconds, or up to LATE times as long where there is no idle moment to
    begin another; less where a slot is full. An error
    of the recorder's own is logged once and ends the record, never the engine.
    """

    def __init__(
        self,
        ring: RingWriter,
        config: RecordedConfig,
        block_hash: BlockHash,
        wall_clock: Callable[[], float],
        minutes: float,
    ) -> None:
        self.numbers = DigestNumbers(block_hash, len(config.cache.groups))
        self.tenants = TenantNumbers()
        self.segment_s = minutes * 60 / (NUM_SLOTS - 1)
        self.is_broken = False
        self._ring = ring
        self._config = config
        self._wall_clock = wall_clock
        self._encoder = msgspec.msgpack.Encoder()
        self._is_open = False
        self._began_s = 0.0
        self._num_digests = 0

    @property
    def block_hash(self) -> BlockHash:
        """The hash that the cache must use."""
        return self.numbers.block_hash

    def prepare(
        self, scheduler: Scheduler, steps: Iterable[Step], now: float, *, is_idle: bool
    ) -> None:
        """Begin a segment before an input if it is time for one. `steps` are under way."""
        if self.is_broken or (self._is_open and not self._is_due(now, is_idle=is_idle)):
            return
        if not can_snapshot(scheduler):
            return
        try:
            self._begin(scheduler, steps, now)
        except Exception:
            self._break("a snapshot failed")

    def write(self, record: Input) -> None:
        """Write an input to the segment, which ends if the input does not fit."""
        if not self._is_open:
            return
        try:
            data = framed(self._encoder.encode(record))
            if len(data) > self._ring.num_left:
                self._is_open = False
            else:
                self._ring.append(data)
        except Exception:
            self._break("an input could not be recorded")

    def _is_due(self, now: float, *, is_idle: bool) -> bool:
        seconds = now - self._began_s
        return (
            seconds >= (self.segment_s if is_idle else LATE * self.segment_s)
            or self._ring.num_left < RESERVE_BYTES
            or len(self.numbers) - self._num_digests > MAX_NEW_DIGESTS
        )

    def _begin(self, scheduler: Scheduler, steps: Iterable[Step], now: float) -> None:
        snapshot = snapshot_scheduler(scheduler, self.numbers, self.tenants)
        start = SegmentStart(
            now,
            self._wall_clock(),
            self._config.scheduler,
            self._config.cache,
            snapshot,
            under_way(steps),
        )
        self._is_open = self._ring.begin(framed(self._encoder.encode(start)))
        self._began_s, self._num_digests = now, len(self.numbers)
        if not self._is_open:
            self._end()
            logger.warning("the flight recorder ends: the cache is too large for a snapshot")

    def _break(self, what: str) -> None:
        self._end()
        logger.exception("the flight recorder ends: %s", what)

    def _end(self) -> None:
        self.is_broken, self._is_open = True, False
        self.numbers.stop()
