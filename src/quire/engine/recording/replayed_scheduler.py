"""A scheduler and a cache that continue from the beginning of a segment."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.snapshot.digest_numbers import NumberedDigests
from quire.cache.spec import AttentionPattern
from quire.cache.states.policy import SnapshotPolicy
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.snapshot.scheduler_snapshot import SchedulerSnapshot, restore_scheduler
from quire.scheduler.step import SeqChunk, Step


class CacheShape(msgspec.Struct, frozen=True):
    """The configuration of a cache, as `CacheConfig` has it, but for the hash and events."""

    num_blocks: int
    block_size: int
    enable_prefix_caching: bool
    groups: tuple[AttentionPattern, ...]
    max_chunk_tokens: int
    num_host_blocks: int
    num_states: int
    snapshots: SnapshotPolicy
    num_host_states: int


class UnfinishedStep(msgspec.Struct, frozen=True, array_like=True):
    """A step whose result had not come when a segment began."""

    number: int
    num_tokens: int
    chunks: tuple[tuple[str, int, int, bool], ...]

    @property
    def step(self) -> Step:
        chunks = (SeqChunk(id, start, num, (), samples) for id, start, num, samples in self.chunks)
        return Step(self.number, (), (), tuple(chunks), self.num_tokens)


class SegmentStart(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """The first frame of a segment: when it begins, by the engine's clock and by that of the wall,
    the configuration, and a snapshot of all that decisions depend on."""

    now_s: float
    wall_s: float
    scheduler: SchedulerConfig
    cache: CacheShape
    snapshot: SchedulerSnapshot
    under_way: tuple[UnfinishedStep, ...]


@dataclass(slots=True)
class ReplayedScheduler:
    """The scheduler, the cache, the hash that is told its answers, the steps that were scheduled
    and not updated yet, and the newest of all steps."""

    scheduler: Scheduler
    cache: KVCache
    digests: NumberedDigests
    steps: dict[int, Step]
    newest: Step | None = None


def shape_of(config: CacheConfig) -> CacheShape:
    """Return the recorded part of a cache's configuration."""
    return CacheShape(
        config.num_blocks,
        config.block_size,
        config.enable_prefix_caching,
        config.groups,
        config.max_chunk_tokens,
        config.num_host_blocks,
        config.num_states,
        config.snapshots,
        config.num_host_states,
    )


def under_way(steps: Iterable[Step]) -> tuple[UnfinishedStep, ...]:
    """Return the recorded part of steps in flight."""
    return tuple(
        UnfinishedStep(
            step.number,
            step.num_tokens,
            tuple(
                (each.request_id, each.start, each.num_tokens, each.samples) for each in step.chunks
            ),
        )
        for step in steps
    )


def restored(start: SegmentStart) -> ReplayedScheduler:
    """Return a scheduler that continues from the beginning of the segment."""
    shape = start.cache
    digests = NumberedDigests(len(shape.groups))
    cache = KVCache(
        CacheConfig(
            shape.num_blocks,
            shape.block_size,
            shape.enable_prefix_caching,
            shape.groups,
            shape.max_chunk_tokens,
            shape.num_host_blocks,
            digests.block_hash,
            num_states=shape.num_states,
            snapshots=shape.snapshots,
            num_host_states=shape.num_host_states,
        )
    )
    scheduler = Scheduler(start.scheduler, cache)
    restore_scheduler(scheduler, start.snapshot, digests)
    steps = {each.number: each.step for each in start.under_way}
    return ReplayedScheduler(scheduler, cache, digests, steps)
