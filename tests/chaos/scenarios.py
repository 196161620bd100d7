"""The scenarios, each with the server that it wants: small in tests, large in `make chaos`."""

import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from tests.chaos.checkpoints import save_faulty
from tests.chaos.kills import Outcome, crashed, killed, signalled
from tests.chaos.mix import asks
from tests.chaos.poison import POISONS, poisoned
from tests.chaos.storm import Weather, storm
from tests.chaos.subject import Subject, subject
from tests.chaos.visits import Visitors
from tests.chaos.world import World, build_world

STUCK_AFTER_S = 4.0
ALWAYS = ("--max-engine-restarts", "100000", "--stuck-after", str(STUCK_AFTER_S))
"""Engines end far more often than any that is well."""
CRASH_STEPS = (75, 30, 50)
"""The steps in their lives at which engines crash, one after another, and from the first again."""
STORM_FLAGS = (
    *("--scheduling-policy", "priority", "--num-gpu-blocks-override", "1024"),
    *("--max-num-seqs", "24", "--sse-keep-alive-interval", "1"),
)
"""KV memory so small that it is full soon, and preempts: what grows then is a leak."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: requests of a load, engines that end, seconds of a storm, its
    clients, and the mean seconds between its troubles."""

    seed: int
    num_requests: int = 128
    num_hits: int = 10
    num_stops: int = 3
    seconds: float = 120.0
    num_clients: int = 16
    calm_s: float = 2.0
    max_tokens: int = 300


def kills(scale: Scale) -> Iterator[Outcome]:
    """The engine is killed and stopped at random moments."""
    with subject(*ALWAYS) as server:
        draw = random.Random(scale.seed)
        these = asks(scale.num_requests, draw, max_tokens=scale.max_tokens)
        yield killed(server, these, scale.num_hits, draw)
        stopped = signalled(server, these, signal.SIGSTOP, scale.num_stops, draw)
        stopped.bound_s = STUCK_AFTER_S
        yield stopped


def faults(scale: Scale) -> Iterator[Outcome]:
    """The engine crashes in a certain step, and by the tokens of a request."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save_faulty(Path(folder))
        with subject(*ALWAYS, *checkpoint.flags) as server:
            draw = random.Random(scale.seed)
            these = asks(scale.num_requests, draw, max_tokens=scale.max_tokens)
            steps = list(islice(cycle(CRASH_STEPS), scale.num_hits))
            yield crashed(server, checkpoint, these, "abort", steps)
            for name in POISONS:
                yield poisoned(server, name, draw)


@contextmanager
def in_a_storm(scale: Scale) -> Iterator[tuple[Subject, World | None]]:
    """Start a server in a world of its own, if there is a compiler to make one."""
    with tempfile.TemporaryDirectory() as folder:
        world = build_world(Path(folder))
        flags: tuple[str, ...] = (*ALWAYS, *STORM_FLAGS)
        variables: dict[str, str] = {}
        if world is not None:
            flags, variables = (*flags, *disk_flags(world)), dict(world.variables)
        with subject(*flags, variables=variables) as server:
            yield server, world


def disk_flags(world: World) -> tuple[str, ...]:
    """Let the server write all that it can to the disk that may be full."""
    cache = ("--prefix-cache-dir", str(world.disk / "prefixes"), "--prefix-cache-bytes", "64MiB")
    return ("--batch-dir", str(world.disk / "batches"), *cache)


def _nothing(visitors: Visitors) -> None:
    return


def all_at_once(scale: Scale) -> Iterator[Outcome]:
    """Everything at once, at random."""
    with in_a_storm(scale) as (server, world):
        weather = Weather(scale.seconds, scale.num_clients, scale.calm_s, scale.seed)
        yield storm(server, world, weather, _nothing).outcome


SCENARIOS: Mapping[str, Callable[[Scale], Iterator[Outcome]]] = {
    "kills": kills,
    "faults": faults,
    "storm": all_at_once,
}
