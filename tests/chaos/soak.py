"""`python -m tests.chaos.soak`: a storm for as long as one likes, with an eye on what must not
grow."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.chaos.metrics import ENDS
from tests.chaos.report import details, where
from tests.chaos.scenarios import Scale, in_a_storm
from tests.chaos.storm import Weather, storm
from tests.chaos.subject import Subject
from tests.chaos.visits import Visitors

MOST_GROWTH = 1.05
MIB = 1 << 20
WARM_SHARE = 0.2
"""The first part of a run, in which memory is filled that is then kept."""
MOST_MORE_FDS = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """The memory and descriptors that the processes held at a moment of the run."""

    at_s: float
    server_mib: float
    server_fds: int
    engine_mib: float
    engine_fds: int
    num_ends: float


@dataclass(slots=True)
class Recorder:
    """Takes a sample every so often, while an engine serves, and prints it now and then."""

    subject: Subject
    every_s: float
    print_every_s: float
    samples: list[Sample] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    printed_s: float = 0.0

    def look(self, visitors: Visitors) -> None:
        at_s = time.monotonic() - self.began_s
        if self.samples and at_s - self.samples[-1].at_s < self.every_s:
            return
        try:
            sample = self._sample(at_s)
        except psutil.NoSuchProcess:
            return
        if sample is None:
            return
        self.samples.append(sample)
        if at_s - self.printed_s >= self.print_every_s:
            self.printed_s = at_s
            print(f"{shown(sample)}; {told(visitors.counts)}", flush=True)

    def _sample(self, at_s: float) -> Sample | None:
        server, engine = self.subject.process, self.subject.engine()
        if engine is None:
            return None
        return Sample(
            at_s,
            server.memory_info().rss / MIB,
            server.num_fds(),
            engine.memory_info().rss / MIB,
            engine.num_fds(),
            self.subject.metrics().sum(ENDS),
        )


def shown(sample: Sample) -> str:
    return (
        f"{sample.at_s / 60:5.1f} min: server {sample.server_mib:.1f} MiB, {sample.server_fds} "
        f"descriptors; engine {sample.engine_mib:.1f} MiB, {sample.engine_fds}; "
        f"{sample.num_ends:.0f} ends"
    )


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class Growth:
    """The most of something in the half of a run after it is warm, and in its last quarter."""

    name: str
    early: float
    late: float
    most: float

    @property
    def is_flat(self) -> bool:
        return self.late <= self.most

    def __str__(self) -> str:
        verdict = "flat" if self.is_flat else f"NOT FLAT, at most {self.most:.1f}"
        return f"{self.name}: {self.early:.1f}, at the end {self.late:.1f}: {verdict}"


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Compare the second and third quarter of a run with its last. An engine's memory depends on
    its age, so that the most of each part is what is compared."""
    whole_s = samples[-1].at_s
    early = [each for each in samples if WARM_SHARE * whole_s <= each.at_s < 0.75 * whole_s]
    late = [each for each in samples if each.at_s >= 0.75 * whole_s]
    if not (early and late):
        return []
    found = []
    for name, unit in (
        ("server_mib", "MiB"),
        ("engine_mib", "MiB"),
        ("server_fds", "descriptors"),
        ("engine_fds", "descriptors"),
    ):
        was, now = (max(float(getattr(each, name)) for each in some) for some in (early, late))
        most = was * MOST_GROWTH if unit == "MiB" else was + MOST_MORE_FDS
        found.append(Growth(f"{name.partition('_')[0]}, {unit}", was, now, most))
    return found


def soak(scale: Scale, json_path: Path | None) -> int:
    """Return 0 where everything held."""
    print(f"seed {scale.seed}; {where()}", flush=True)
    with in_a_storm(scale) as (server, world):
        recorder = Recorder(server, every_s=2.0, print_every_s=min(60.0, scale.seconds / 10))
        weather = Weather(scale.seconds, scale.num_clients, scale.calm_s, scale.seed)
        outcome = storm(server, world, weather, recorder.look).outcome
        samples = recorder.samples
        if outcome.breaches:
            print("the log of the server:", server.server.log(), sep="\n")
    grown = growths(samples)
    failed = bool(outcome.breaches) or not grown or not all(each.is_flat for each in grown)
    print(f"{outcome.num_answers} requests, {outcome.num_disturbances} troubles")
    print(details(outcome), *grown, sep="\n")
    print("FAIL" if failed else "PASS")
    if json_path is not None:
        record = {
            "where": where(),
            "scale": asdict(scale),
            "outcome": asdict(outcome),
            "samples": [asdict(each) for each in samples],
        }
        json_path.write_text(json.dumps(record, indent=1) + "\n")
    return int(failed)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--calm-s", type=float, default=8.0, help="mean between two troubles [8]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and samples there")
    given = parser.parse_args(argv)
    scale = Scale(
        given.seed, seconds=given.minutes * 60, num_clients=given.clients, calm_s=given.calm_s
    )
    return soak(scale, given.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
