"""The cost of being watched: the time of a frame of the live view in the engine.

    python -m bench.live_cost [--running 256] [--blocks 10000] [--frames 100] [--step-ms 75]

Between two frames so many steps are taken as fit into their interval, with results out of thin air;
requests that end are followed by others. Prints medians and 95th percentiles of processor time in
milliseconds, and their share of the engine's time, which frames that take long are kept to by being
further apart.
"""

import argparse
import time
from statistics import median, quantiles

import msgspec

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.engine.live_timer import MAX_SHARE
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.live.live_watch import LiveWatch
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import StepResult
from quire.server.observability.live.live_feed import INTERVAL_S

BLOCK_SIZE = 16
NUM_PREFIX_TOKENS = 512


class Load:
    """A scheduler that is kept full of requests, half of whose prompts begin alike."""

    def __init__(self, num_running: int, num_blocks: int) -> None:
        config = SchedulerConfig(
            max_num_seqs=num_running,
            max_num_batched_tokens=2048,
            max_model_len=2048,
            max_num_queued_reqs=4 * num_running,
        )
        self._num_kept = num_running + num_running // 4
        self._num_added = 0
        self._num_ended = 0
        self._num_steps = 0
        self.scheduler = Scheduler(config, KVCache(CacheConfig(num_blocks, BLOCK_SIZE)))

    def step(self) -> None:
        """Add what is missing, and take a step."""
        while self._num_added - self._num_ended < self._num_kept:
            self._add(self._num_added)
            self._num_added += 1
        self._num_steps += 1
        step = self.scheduler.schedule(float(self._num_steps))
        result = StepResult(step.number, (7,) * sum(chunk.samples for chunk in step.chunks))
        deltas = self.scheduler.update(step, result, self._num_steps + 0.5)
        self._num_ended += sum(delta.finish is not None for delta in deltas)
        self.scheduler.take_events()

    def _add(self, index: int) -> None:
        shared = range(NUM_PREFIX_TOKENS if index % 2 else 0)
        prompt = (*shared, *(index * 31 + place for place in range(128 + 37 * (index % 17))))
        new = NewRequest(f"r{index}", prompt, Sampling(), Stopping(100 + 13 * (index % 29)))
        if (refusal := self.scheduler.add(new, float(self._num_steps))) is not None:
            raise RuntimeError(refusal.message)


def measure(load: Load, num_frames: int, steps_per_frame: int) -> tuple[list[float], list[int]]:
    """Return the milliseconds of each frame, encoded, and its bytes; the whole one comes first."""
    watch = LiveWatch(load.scheduler.in_flight)
    encoder = msgspec.msgpack.Encoder()
    taken, sizes = [], []
    for _ in range(num_frames + 1):
        for _ in range(steps_per_frame):
            load.step()
        began = time.process_time()
        frame: LiveFrame = watch.frame()
        body = encoder.encode(frame)
        taken.append(1e3 * (time.process_time() - began))
        sizes.append(len(body))
    return taken, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=256, help="requests that run")
    parser.add_argument("--blocks", type=int, default=10_000, help="blocks of the cache")
    parser.add_argument("--frames", type=int, default=100, help="frames to measure")
    parser.add_argument("--step-ms", type=float, default=75.0, help="the time of one step")
    args = parser.parse_args()
    load = Load(args.running, args.blocks)
    for _ in range(400):
        load.step()
    steps_per_frame = max(round(1e3 * INTERVAL_S / args.step_ms), 1)
    (whole_ms, *taken), (whole_bytes, *sizes) = measure(load, args.frames, steps_per_frame)
    stats = load.scheduler.stats
    share = median(taken) / max(1e3 * INTERVAL_S, median(taken) / MAX_SHARE)
    print(f"{stats.num_running} running, {stats.num_waiting} waiting, {stats.blocks_by_state}")
    print(f"the first frame, which is whole: {whole_ms:.2f} ms, {whole_bytes} bytes")
    print(
        f"a frame: median {median(taken):.2f} ms (p95 {quantiles(taken, n=20)[-1]:.2f}), "
        f"{median(sizes):.0f} bytes; {share:.2%} of the time"
    )


if __name__ == "__main__":
    main()
