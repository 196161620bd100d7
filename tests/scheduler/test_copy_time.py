"""The time of block copies comes later than they were asked for, and is learnt as it is told."""

from collections import deque

import pytest

from quire.cache.block_copies import CopyKind, CopyTime
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Stats, Step, StepResult
from tests.scheduler.driver import BLOCK_SIZE, request

STEP_S, TOKEN_S = 0.5, 0.125


def num_swapped(step: Step) -> int:
    return sum(copy.kind is not CopyKind.FORK for copy in step.block_copies)


def play(block_s: float, *, lag: int, stall_share: float) -> tuple[Stats, int]:
    """Requests that have too few blocks, over a device that tells of copies `lag` steps later.
    While it copies it also computes, but for `stall_share` of that time. Returns in how many steps
    something was swapped out, too."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=6,
            max_num_batched_tokens=8,
            max_model_len=64,
            max_num_queued_reqs=100,
            watermark=0.0,
            preemption_mode=PreemptionMode.AUTO,
        ),
        KVCache(CacheConfig(14, BLOCK_SIZE, enable_prefix_caching=False, num_host_blocks=200)),
    )
    for index in range(12):
        scheduler.add(request(f"r{index}", 4, 12), 0.0)
    now, num_steps, late = 0.0, 0, deque([CopyTime()] * lag)
    while scheduler.has_work:
        step = scheduler.schedule(now)
        num_blocks = num_swapped(step)
        num_steps += any(copy.kind is CopyKind.OUT for copy in step.block_copies)
        copy_s = num_blocks * block_s
        late.append(CopyTime(num_blocks, copy_s, copy_s * stall_share))
        told = late.popleft()
        now += STEP_S + step.num_tokens * TOKEN_S + told.stall_s
        token_ids = (7,) * sum(chunk.samples for chunk in step.chunks)
        scheduler.update(step, StepResult(step.number, token_ids, copy_time=told), now)
    return scheduler.stats, num_steps


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("stall_share", [0.0, 1.0])
def test_cheap_copies_are_known_to_be_cheap_however_late_they_are_told(
    lag: int, stall_share: float
) -> None:
    stats, _ = play(0.7 * TOKEN_S, lag=lag, stall_share=stall_share)
    assert stats.num_swaps == stats.num_preemptions > 4


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("stall_share", [0.0, 1.0])
def test_dear_copies_are_known_to_be_dear_however_late_they_are_told(
    lag: int, stall_share: float
) -> None:
    """Copies that take longer than to compute the tokens are tried until the first are told of."""
    stats, num_steps = play(1.1 * TOKEN_S, lag=lag, stall_share=stall_share)
    assert 0 < num_steps <= 1 + lag
    assert stats.num_preemptions > stats.num_swaps
