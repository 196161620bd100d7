"""Compares what `quire plan` says of this machine with what is measured on it.

    python -m bench.planned --model MODELS/bench-15m:128:64 --model MODELS/bench-0.5b:64:16 --record

A model is a folder, with the tokens in and out of its requests; `bundled:128:64` is the bundled
one. For each of them the plan comes first; then a server is started with the same options, its
memory receipt is read, and 1, 32 and 128 requests come at once, each number `--repeats` times.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from bench.machine import busy_cores, read_commit, read_machine, without_folders
from bench.pairs import Pair
from bench.peers import QUIRE
from bench.planned_records import BurstRow, PlannedModel, PlannedRecord, planned_tables
from bench.records import DATE_FORMAT
from bench.servers import Launch, running
from quire.workbench.bench.figures import LoadFigures
from quire.workbench.planning.forecast import Forecast
from quire.workbench.planning.plan import ServingPlan

REPOSITORY = Path(__file__).resolve().parents[1]
BUNDLED = "bundled"
COMPARED = ("weights", "activation", "scratch", "kv")
MEMORY = re.compile(r'^quire:memory_bytes\{.*?kind="(\w+)".*?\} (\S+)$', re.MULTILINE)
"""A line of the memory receipt in the metrics."""
START_TIMEOUT_S = 300.0


class Case(NamedTuple):
    """A model, and the tokens in and out of its requests."""

    name: str
    folder: Path
    num_input_tokens: int
    num_output_tokens: int

    @property
    def lengths(self) -> tuple[str, ...]:
        """The lengths as options, of `quire plan` and of `quire bench` alike."""
        return (
            *("--input-tokens", str(self.num_input_tokens)),
            *("--output-tokens", str(self.num_output_tokens)),
        )


class _Run(msgspec.Struct, frozen=True):
    figures: LoadFigures


class _Benched(msgspec.Struct, frozen=True):
    """The part of what `quire bench --json` writes that is read here."""

    runs: tuple[_Run, ...]


def parse_case(text: str) -> Case:
    """Return the case that `FOLDER:IN:OUT` names. Raises ArgumentTypeError."""
    name, *lengths = text.rsplit(":", 2)
    folder = Path(str(files("quire.models") / "bundled")) if name == BUNDLED else Path(name)
    if len(lengths) != 2 or not all(each.isdecimal() and int(each) for each in lengths):
        raise argparse.ArgumentTypeError(f"expected MODEL:IN:OUT, got {text!r}")
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{name} holds no config.json")
    return Case(name if name == BUNDLED else folder.name, folder, *map(int, lengths))


def plan_of(case: Case) -> ServingPlan:
    """Return what `quire plan` says of the case on this machine."""
    command = ("plan", str(case.folder), "--device", "this", "--json", *case.lengths)
    done = subprocess.run(
        (sys.executable, "-m", "quire.server.cli", *command), capture_output=True, check=True
    )
    return msgspec.json.decode(done.stdout, type=ServingPlan)


def measured(case: Case, plan: ServingPlan, num_repeats: int) -> PlannedModel:
    """Return the plan of a case beside what a server of the same options did."""
    (flops_s,) = plan.device.flops_s.values()
    with tempfile.TemporaryDirectory() as scratch:
        launch = Launch("quire", QUIRE, QUIRE.program, case.folder, ())
        log = Path(scratch) / "server.log"
        with running(launch, log_path=log, start_timeout_s=START_TIMEOUT_S) as server:
            url = f"http://127.0.0.1:{server.port}"
            bursts = [
                _burst(url, case, each, num_repeats=num_repeats, scratch=Path(scratch))
                for each in plan.forecasts
            ]
            return PlannedModel(
                case.name,
                case.num_input_tokens,
                case.num_output_tokens,
                plan.device.bytes_s,
                flops_s,
                dict(_memory(url, plan)),
                tuple(bursts),
            )


def _burst(url: str, case: Case, planned: Forecast, *, num_repeats: int, scratch: Path) -> BurstRow:
    """Return the medians over the rounds in which requests came at once."""
    number, path = planned.burst.num_requests, scratch / "bench.json"
    counts = ("--requests", str(number), "--concurrency", str(number))
    command = ("bench", "throughput", "--url", url, *counts, *case.lengths)
    subprocess.run(
        (
            *(sys.executable, "-m", "quire.server.cli", *command),
            *("--repeats", str(num_repeats), "--json", str(path)),
        ),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    runs = [each.figures for each in msgspec.json.decode(path.read_bytes(), type=_Benched).runs]
    told = planned.figures

    def pair(planned: float | None, measured: Sequence[float | None]) -> Pair:
        return Pair(planned or 0.0, median(each or 0.0 for each in measured))

    row = BurstRow(
        number,
        pair(told.first_token.p50_ms, [each.first_token.p50_ms for each in runs]),
        pair(told.inter_token.p50_ms, [each.inter_token.p50_ms for each in runs]),
        pair(told.output_tok_s, [each.output_tok_s for each in runs]),
    )
    print(f"{case.name}: {number} requests are measured", flush=True)
    return row


def _memory(url: str, plan: ServingPlan) -> Iterator[tuple[str, Pair]]:
    """Yield the lines of the memory receipt that weights and options decide."""
    assert plan.facts is not None, "the model would start"
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        told = dict(MEMORY.findall(answer.read().decode()))
    planned = {line.kind: line.num_bytes for line in plan.facts.receipt}
    for kind in COMPARED:
        yield kind, Pair(planned[kind], float(told[kind]))


def main(argv: Sequence[str] | None = None) -> None:
    """Plan, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.planned", description=__doc__)
    parser.add_argument("--model", type=parse_case, action="append", required=True)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each number [3]")
    parser.add_argument("--record", action="store_true", help="keep it in bench/records/plans")
    words = sys.argv[1:] if argv is None else list(argv)
    flags = parser.parse_args(words)
    busy = busy_cores()
    models = tuple(measured(each, plan_of(each), flags.repeats) for each in flags.model)
    record = PlannedRecord(
        datetime.now(UTC).strftime(DATE_FORMAT),
        read_commit(REPOSITORY),
        without_folders(shlex.join(("python", "-m", "bench.planned", *words))),
        read_machine(),
        busy,
        models,
    )
    if flags.record:
        print(record.save())
    print(planned_tables(record))


if __name__ == "__main__":
    main()
