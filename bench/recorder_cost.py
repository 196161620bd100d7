"""Measures what the flight recorder adds to a step, and how long a snapshot takes.

    python -m bench.recorder_cost [--model FOLDER] [--running 256] [--steps 400]
        [--engine-steps 100] [--blocks 10000,100000]

Two engines with the bundled model, or that in a folder, and then two schedulers alone, are stepped
in turns, one of each pair recorded. What differs from turn to turn is far more than what a recorder
takes, so the difference is the median over turns, with its standard error. Before each step of the
schedulers more memory is read than caches hold, as a model would.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from importlib.resources import files
from statistics import median, quantiles
from typing import NamedTuple

from bench.in_process import build_quietly
from quire.cache.block_hash import BlockHash
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
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
MAX_SHORT_PROMPT = 32
MEMORY_BYTES = 64 << 20


class Compared(NamedTuple):
    """The medians without and with the recorder, that of the differences, and its standard
    error."""

    without: float
    recorded: float
    difference: float
    error: float

    def __str__(self) -> str:
        share = 100 * self.difference / self.without
        return (
            f"{self.without:.0f} us a step, recorded {self.recorded:.0f} us: {self.difference:.0f} "
            f"us more (standard error {self.error:.0f}), {share:.2f} %"
        )


def compared(timed: Callable[[int, int], float], num_turns: int) -> Compared:
    """Time both of a pair, which `timed` knows by 0 and 1, in turns; each is the first in every
    second turn."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(1, num_turns + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            taken[which].append(timed(which, turn))
    differences = [recorded - without for without, recorded in zip(*taken, strict=True)]
    first, _, third = quantiles(differences, n=4)
    error = 1.2533 * (third - first) / 1.349 / num_turns**0.5  # of a median, were it normal
    return Compared(median(taken[0]), median(taken[1]), median(differences), error)


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
        length = NUM_PROMPT_TOKENS - index % BLOCK_SIZE
        prompt = tuple((index * 7919 + place) % 50_000 for place in range(length))
        new = NewRequest(f"request-{index:08d}", prompt, Sampling(), Stopping(max_tokens))
        if (refusal := scheduler.add(new, now)) is not None:
            raise RuntimeError(refusal.message)


def draw(step: Step) -> StepResult:
    return StepResult(step.number, (7,) * sum(chunk.samples for chunk in step.chunks))


def step(scheduler: Scheduler, now: float) -> float:
    """Return the microseconds of schedule and update."""
    began = time.thread_time()
    scheduled = scheduler.schedule(now)
    between = time.thread_time()
    result = draw(scheduled)
    resumed = time.thread_time()
    scheduler.update(scheduled, result, now + 0.01)
    return 1e6 * (time.thread_time() - resumed + between - began)


def compare_schedulers(num_running: int, num_steps: int) -> Compared:
    """Return microseconds of processor time."""
    num_blocks = num_running * (NUM_PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE + 1
    both = build(num_running, num_blocks, None), build(num_running, num_blocks, 10.0)
    for scheduler in both:
        submit(scheduler, 0, num_running, MAX_TOKENS, 0.0)
        step(scheduler, 0.0)
    memory = bytes(MEMORY_BYTES)

    def timed(which: int, turn: int) -> float:
        memory.count(1)
        return step(both[which], 0.02 * turn)

    return compared(timed, num_steps)


def build_engine(model: str, num_running: int, num_steps: int, *, is_recorded: bool) -> Engine:
    """Return an engine all of whose requests decode."""
    num_tokens = num_running * (2 * MAX_SHORT_PROMPT + num_steps + BLOCK_SIZE)
    config = EngineConfig(
        ModelConfig(model, device="cpu"),
        MemoryConfig(kv_cache_tokens=num_tokens, swap_space=0),
        SchedulingConfig(max_num_seqs=num_running),
        ring_fd=create_ring() if is_recorded else None,
    )
    engine, _ = build_quietly(config)
    draw = random.Random(0)
    for number in range(num_running):
        length = draw.randrange(2, MAX_SHORT_PROMPT)
        prompt = tuple(draw.randrange(3, 2000) for _ in range(length))
        stopping = Stopping(MAX_SHORT_PROMPT + num_steps)
        refusal = engine.submit(NewRequest(f"cmpl-{number:032x}", prompt, Sampling(), stopping))
        if refusal is not None:
            raise RuntimeError(refusal.message)
    while len(output := engine.step().deltas) < num_running:
        if any(each.finish for each in output):
            raise RuntimeError("a request ended before all of them ran")
    return engine


def compare_engines(model: str, num_running: int, num_steps: int) -> None:
    """Print microseconds of whole steps, by the wall and of all processors."""
    both = [
        build_engine(model, num_running, 2 * num_steps, is_recorded=is_recorded)
        for is_recorded in (False, True)
    ]
    for name, clock in (("wall", time.perf_counter), ("processor", time.process_time)):

        def timed(which: int, turn: int, clock: Callable[[], float] = clock) -> float:
            began = clock()
            both[which].step()
            taken = 1e6 * (clock() - began)
            both[which].take_events()
            return taken

        steps = compared(timed, num_steps)
        print(f"engine, {num_running} running, {name} time: {steps}", flush=True)


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
        began = time.thread_time()
        scheduler.schedule(2e6 + number)
        times.append(1e3 * (time.thread_time() - began))
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    bundled = str(files("quire.models") / "bundled")
    parser.add_argument("--model", default=bundled, help="folder of a checkpoint")
    parser.add_argument("--engine-steps", type=int, default=100, help="decode steps of engines")
    parser.add_argument("--running", type=int, default=256, help="requests in each step")
    parser.add_argument("--steps", type=int, default=400, help="decode steps")
    parser.add_argument("--blocks", default="10000,100000", help="sizes of the cache")
    args = parser.parse_args()
    compare_engines(args.model, args.running, args.engine_steps)
    schedulers = compare_schedulers(args.running, args.steps)
    print(f"scheduler alone, {args.running} running, processor time: {schedulers}", flush=True)
    for num_blocks in map(int, args.blocks.split(",")):
        milliseconds = snapshot_ms(num_blocks, args.running)
        print(f"a step with a snapshot, {num_blocks} blocks: {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
