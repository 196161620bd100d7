"""The real scheduler and cache over a device that only counts: a step takes the seconds that a
formula gives, so that an hour of traffic is replayed in a minute, and runs are the same each time.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from quire.cache.block_copies import CopyTime
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Stats, Step, StepResult

TOKEN_IDS = 1 << 17


class Device(NamedTuple):
    """Seconds of a step beside its work, of one token, and of one block moved."""

    step_s: float
    token_s: float
    block_s: float


class Arrival(NamedTuple):
    time_s: float
    new: NewRequest


@dataclass
class Replay:
    """`seconds` of the device's time passed until all was answered."""

    stats: Stats
    seconds: float = 0.0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_blocks_moved: int = 0
    max_active_blocks: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Tokens of answered requests a second, prompts and outputs."""
        return (self.num_prompt_tokens + self.num_output_tokens) / self.seconds


def replay(
    arrivals: Sequence[Arrival], config: SchedulerConfig, cache: CacheConfig, device: Device
) -> Replay:
    """Until every request has ended. Raises RuntimeError where steps go by without a token."""
    scheduler = Scheduler(config, KVCache(cache))
    found, now, next_arrival, num_idle = Replay(scheduler.stats), 0.0, 0, 0
    while next_arrival < len(arrivals) or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, arrivals[next_arrival].time_s)
        while next_arrival < len(arrivals) and arrivals[next_arrival].time_s <= now:
            if scheduler.add(arrivals[next_arrival].new, now) is not None:
                found.refused.append(arrivals[next_arrival].new.id)
            next_arrival += 1
        step = scheduler.schedule(now)
        copy_s = len(step.block_copies) * device.block_s
        now += device.step_s + step.num_tokens * device.token_s + copy_s
        for delta in scheduler.update(step, _result(step, copy_s), now):
            _take(delta, found)
        num_idle = 0 if step.num_tokens else num_idle + 1
        if num_idle > 100:
            raise RuntimeError("a hundred steps without a token: a livelock")
        found.num_steps += 1
        found.num_blocks_moved += len(step.block_copies)
        found.stats = scheduler.stats
        found.max_active_blocks = max(found.max_active_blocks, found.stats.num_blocks_active)
        if found.num_steps % 2000 == 0:
            _show(len(found.ended), len(arrivals))
    found.seconds = now - (arrivals[0].time_s if arrivals else 0.0)
    _show(len(found.ended), len(arrivals))
    return found


def _result(step: Step, copy_s: float) -> StepResult:
    """Tokens that no other request draws, so that outputs share no prefix by chance."""
    token_ids = tuple(
        crc32(f"{chunk.request_id}/{chunk.start + chunk.num_tokens}".encode()) % TOKEN_IDS
        for chunk in step.chunks
        if chunk.samples
    )
    copied = CopyTime(len(step.block_copies), copy_s, copy_s)
    return StepResult(step.number, token_ids, copy_time=copied)


def _take(delta: Delta, found: Replay) -> None:
    if delta.finish is not None:
        found.ended[delta.request_id] = delta.finish.num_output_tokens
        found.num_prompt_tokens += delta.finish.num_prompt_tokens
        found.num_output_tokens += delta.finish.num_output_tokens


def _show(num_ended: int, num_all: int) -> None:
    print(f"\r{num_ended:7} of {num_all} requests", end="", file=sys.stderr, flush=True)
