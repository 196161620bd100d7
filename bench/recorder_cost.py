"""Measures what the flight recorder adds to a step of the scheduler, and how long a snapshot takes.

    python -m bench.recorder_cost [--running 256] [--steps 400] [--blocks 10000,100000]

Two schedulers of the same requests are stepped in turns, one of them recorded. Prints medians in
microseconds of processor time.
"""

import argparse
import os
import time
from statistics import median

from quire.cache.block_hash import BlockHash
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.engine.recording.recorded_scheduler import RecordedScheduler
from quire.engine.recording.recorder import FlightRecorder, RecordedConfig
from quire.engine.recording.replayed_scheduler import shape_of
from quire.engine.recording.ring import RingWriter, create_ring
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Step, StepResult

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 512
MAX_TOKENS = 1024


def recorder_of(config: SchedulerConfig, cache: CacheConfig, minutes: float) -> FlightRecorder:
    fd = create_ring()
    ring = RingWriter(fd)
    os.close(fd)
    recorded = RecordedConfig(config, shape_of(cache))
    return FlightRecorder(ring, recorded, BlockHash(os.urandom(32)), time.time, minutes)


def build(num_running: int, num_blocks: int, minutes: float | None) -> Scheduler:
    max_model_len = NUM_PROMPT_TOKENS + MAX_TOKENS
    config = SchedulerConfig(num_running, num_running * NUM_PROMPT_TOKENS, max_model_len, 10_000)
    cache = CacheConfig(num_blocks, BLOCK_SIZE)
    if minutes is None:
        return Scheduler(config, KVCache(cache))
    recorder = recorder_of(config, cache, minutes)
    hashed = CacheConfig(num_blocks, BLOCK_SIZE, block_hash=recorder.block_hash)
    return RecordedScheduler(config, KVCache(hashed), recorder)


def submit(scheduler: Scheduler, first: int, num: int, max_tokens: int, now: float) -> None:
    for index in range(first, first + num):
        prompt = tuple((index * 7919 + place) % 50_000 for place in range(NUM_PROMPT_TOKENS))
        new = NewRequest(f"request-{index:08d}", prompt, Sampling(), Stopping(max_tokens))
        if (refusal := scheduler.add(new, now)) is not None:
            raise RuntimeError(refusal.message)


def draw(step: Step) -> StepResult:
    return StepResult(step.number, (7,) * sum(chunk.samples for chunk in step.chunks))


def step(scheduler: Scheduler, now: float) -> float:
    """Return the microseconds of schedule and update."""
    began = time.process_time()
    scheduled = scheduler.schedule(now)
    between = time.process_time()
    result = draw(scheduled)
    resumed = time.process_time()
    scheduler.update(scheduled, result, now + 0.01)
    return 1e6 * (time.process_time() - resumed + between - began)


def compare(num_running: int, num_steps: int) -> tuple[float, float]:
    """Return the medians without and with the recorder."""
    num_blocks = num_running * (NUM_PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE + 1
    both = build(num_running, num_blocks, None), build(num_running, num_blocks, 10.0)
    for scheduler in both:
        submit(scheduler, 0, num_running, MAX_TOKENS, 0.0)
        step(scheduler, 0.0)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(1, num_steps + 1):
        for scheduler, taken in zip(both, times, strict=True):
            taken.append(step(scheduler, 0.02 * number))
    return median(times[0]), median(times[1])


def snapshot_ms(num_blocks: int, num_running: int) -> float:
    """Return the milliseconds of a snapshot where all blocks are cached or held."""
    scheduler = build(num_running, num_blocks, 1e-9)
    num_prompts = num_blocks * BLOCK_SIZE // NUM_PROMPT_TOKENS
    for first in range(0, num_prompts, num_running):
        submit(scheduler, first, num_running, 1, float(first))
        while scheduler.has_work:
            step(scheduler, float(first))
    submit(scheduler, num_prompts, num_running, MAX_TOKENS, 1e6)
    step(scheduler, 1e6)
    times = []
    for number in range(5):
        began = time.process_time()
        scheduler.schedule(2e6 + number)
        times.append(1e3 * (time.process_time() - began))
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=256, help="requests in each step")
    parser.add_argument("--steps", type=int, default=400, help="decode steps")
    parser.add_argument("--blocks", default="10000,100000", help="sizes of the cache")
    args = parser.parse_args()
    without, recorded = compare(args.running, args.steps)
    print(
        f"{args.running} running: {without:.0f} us a step, recorded {recorded:.0f} us: "
        f"{recorded - without:.0f} us more"
    )
    for num_blocks in map(int, args.blocks.split(",")):
        milliseconds = snapshot_ms(num_blocks, args.running)
        print(f"a step with a snapshot, {num_blocks} blocks: {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
