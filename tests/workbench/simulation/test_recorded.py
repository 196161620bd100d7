"""A record of an engine becomes a trace: the simulation takes the recorded steps again."""

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    RecordingConfig,
    SchedulingConfig,
)
from quire.engine.engine import Engine
from quire.engine.recording.flight_file import load_file
from quire.engine.recording.ring import create_ring
from quire.engine.startup.build_toy import build_toy_engine
from quire.engines.process.flight_ring import FlightRing
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.workbench.simulation.against_record import (
    ScheduleDiffers,
    check_schedule,
    recorded_outcome,
)
from quire.workbench.simulation.figures import Objective, figures_of
from quire.workbench.simulation.recorded import read_run

NUM_REQUESTS = 40


class Clock:
    """Goes on by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def submit(engine: Engine, number: int, draw: random.Random) -> None:
    shared = tuple(range(draw.choice((0, 40, 200))))
    prompt = shared + tuple(draw.choices(range(500), k=draw.randrange(1, 90)))
    stopping = Stopping(draw.randrange(1, 60), eos_token_ids=(3, 5, 7, 9))
    assert engine.submit(NewRequest(f"r{number}", prompt, Sampling(seed=number), stopping)) is None


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a toy engine that is short of blocks, so that requests are preempted."""
    config = EngineConfig(
        ModelConfig(TOY_MODEL),
        MemoryConfig(num_gpu_blocks_override=34, swap_space=0.0),
        SchedulingConfig(max_num_seqs=8, max_num_batched_tokens=64),
        recording=RecordingConfig(60.0, str(tmp_path_factory.mktemp("flight"))),
    )
    ring = FlightRing(create_ring())
    config = replace(ring.configured(config), ring_fd=os.dup(ring.fd))
    engine, _ = build_toy_engine(config, Clock())
    draw, number = random.Random(1), 3
    for first in range(number):  # before the first step
        submit(engine, first, draw)
    while number < NUM_REQUESTS or engine.has_work:
        while number < NUM_REQUESTS and (not engine.has_work or draw.random() < 0.2):
            submit(engine, number, draw)
            number += 1
        engine.step()
    written = asyncio.run(ring.dump())
    assert written is not None
    return written.path


def segments(path: Path) -> Iterator[bytes]:
    yield from load_file(path).segments


def test_a_simulation_takes_the_recorded_steps_again(record: Path) -> None:
    run = read_run(list(segments(record)))
    assert len(run.answers) == NUM_REQUESTS and all(a.has_ended for a in run.answers.values())
    assert check_schedule(run) == len(run.steps) > 100


def test_another_schedule_is_told(record: Path) -> None:
    run = read_run(list(segments(record)))
    first = next(iter(run.answers.values()))
    del first.token_times_s[1:]
    with pytest.raises(ScheduleDiffers, match=r"step \d+: recorded \[.*\], simulated"):
        check_schedule(run)


def test_recorded_figures_are_those_of_the_run(record: Path) -> None:
    run = read_run(list(segments(record)))
    figures = figures_of(recorded_outcome(run), Objective())
    assert figures.num_requests == NUM_REQUESTS and figures.num_steps == len(run.steps)
    assert figures.num_preemptions > 0 and figures.hit_rate > 0.1
    assert any(each.ends_early for each in run.requests())
    steps = run.measured_steps()
    assert sum(each.work.num_tokens for each in steps) == sum(s.num_tokens for s in run.steps)
    assert all(each.seconds > 0 for each in steps)
