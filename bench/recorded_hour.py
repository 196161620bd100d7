"""Records an hour of steps through the engine with the toy model, on a clock of its own, and
replays it.

    python -m bench.recorded_hour [--steps 100000] [--seed 0]

Multi-turn conversations with shared beginnings, forks, deadlines, aborts, resets and pins arrive in
bursts, on a pool that is too small for all of them. Prints the size of the record and whether the
replay decided the same.
"""

import argparse
import asyncio
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    RecordingConfig,
    SchedulingConfig,
)
from quire.engine.engine import Engine
from quire.engine.recording.flight_file import read_file
from quire.engine.recording.ring import create_ring
from quire.engine.startup.build_toy import build_toy_engine
from quire.engines.process.flight_ring import FlightRing
from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.workbench.simulation.replay import replay

STEP_S = 0.036
"""A hundred thousand steps are an hour."""
MAX_PROMPT = 900


class Traffic:
    """Conversations that go on with what was answered."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._prompts: list[tuple[int, ...]] = [self._words(n) for n in (40, 200, 333)]
        self._num = 0
        self.live: dict[str, NewRequest] = {}

    def _words(self, num: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(500) for _ in range(num))

    def arrive(self, engine: Engine) -> None:
        """Submit a request, or two of one prompt."""
        draw = self._random
        prompt = draw.choice(self._prompts) + self._words(draw.randrange(1, 120))
        source = None
        for _ in range(draw.choice((1, 1, 2))):
            self._num += 1
            new = NewRequest(
                f"request-{self._num}",
                prompt,
                Sampling(seed=self._num),
                Stopping(draw.randrange(1, 150), eos_token_ids=(3,)),
                tenant=f"tenant-{draw.randrange(5)}",
                time_limit_s=draw.choice((None, None, None, 20.0)),
                fork_of=source,
            )
            if engine.submit(new) is None:
                self.live[new.id], source = new, new.id

    def step(self, engine: Engine) -> None:
        """Let some arrive and some go, and take a step."""
        draw = self._random
        if draw.random() < 0.06:
            self.arrive(engine)
        if self.live and draw.random() < 0.002:
            engine.abort(draw.choice(list(self.live)))
        if draw.random() < 0.0001:
            engine.reset_prefix_cache()
        for delta in engine.step().deltas:
            if delta.finish is not None:
                ended = self.live.pop(delta.request_id, None)
                if ended is not None and len(ended.prompt_token_ids) < MAX_PROMPT:
                    self._prompts = [*self._prompts[-40:], ended.prompt_token_ids]
        engine.take_events()


def record(num_steps: int, seed: int, folder: Path) -> Path:
    """Return the file of so many steps."""
    config = EngineConfig(
        ModelConfig(TOY_MODEL),
        MemoryConfig(num_gpu_blocks_override=180, swap_space=0.0001),
        SchedulingConfig(
            max_num_seqs=16, max_num_queued_reqs=20, scheduling_policy=PolicyName.FAIR
        ),
        recording=RecordingConfig(120.0, str(folder)),
    )
    ring = FlightRing(create_ring())
    config = replace(ring.configured(config), ring_fd=os.dup(ring.fd))  # an engine closes its own
    now = 1000.0
    engine, _ = build_toy_engine(config, lambda: now)
    traffic, took = Traffic(seed), random.Random(seed)
    for _ in range(num_steps):
        now += STEP_S * (0.5 + took.random())
        traffic.step(engine)
    record = asyncio.run(ring.dump())
    assert record is not None
    return record.path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = record(args.steps, args.seed, Path(folder))
        data = path.read_bytes()
    file = read_file(data)
    began = time.perf_counter()
    found = replay(file.segments)
    seconds = time.perf_counter() - began
    print(
        f"{len(data) / 1e6:.1f} MB ({sum(map(len, file.segments)) / 1e6:.1f} MB in memory), "
        f"{len(found.starts)} segments, {found.num_steps} steps, {found.num_arrivals} arrivals, "
        f"{found.num_preemptions} preemptions, replayed in {seconds:.1f} s: "
        f"{found.difference or 'the same decision at every step'}"
    )


if __name__ == "__main__":
    main()
