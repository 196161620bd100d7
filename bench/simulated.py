"""Compares what `quire sim` says of a server on this machine with what its clients see.

    python -m bench.simulated --model bundled --record
    python -m bench.simulated --model MODELS/bench-0.5b --share 0.5 --rounds 1 --record

Each round, a server with a flight recorder is asked by one client at a time, as in W2 and W5, and
with prompts and outputs of many lengths; `quire sim --calibrate` fits a cost model to all that was
recorded until then. Then come W2, W5 and bursts at half the rate that W5 came to, with requests
that the cost model has not seen, and the same traces are simulated. A machine whose speed changes
from one minute to the next is so met as it is; the figures are medians over the rounds.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from bench.machine import busy_cores, read_commit, read_machine, without_folders
from bench.pairs import Pair
from bench.peers import QUIRE
from bench.records import DATE_FORMAT
from bench.servers import HOST, Launch, running
from bench.simulated_records import SimulatedRecord, TraceRow, simulated_table
from bench.trace_clients import Asked, Played, play
from quire.workbench.bench.exchange import ServerAddress
from quire.workbench.simulation.figures import SimFigures
from quire.workbench.simulation.traces.read import read_trace

REPOSITORY = Path(__file__).resolve().parents[1]
QUIRE_COMMAND = (sys.executable, "-m", "quire.server.cli")
BUNDLED = "bundled"
W2 = "closed:concurrency=32,requests={},prompt=128,output=64"
W5 = "closed:concurrency=64,requests={},prompt=64,output=64"
BURSTS = "gamma:rate={:.2f},cv=3,requests={},prompt=20-300,output=8-100"
SEEN = (
    (W2, 64),
    (W5, 256),
    ("closed:concurrency=4,requests={},prompt=16-300,output=16-96", 24),
    ("closed:concurrency=24,requests={},prompt=16-300,output=16-96", 96),
)
"""Traces that the cost model is fitted to, beside a client that is alone, and their requests."""
SEEN_SEED = 100
"""No request of the rounds is drawn by it."""
MEAN_BURST_OUTPUT = 54
BURST_SHARE = 0.5
START_TIMEOUT_S = 300.0


class Rig(NamedTuple):
    """A server that runs, a folder for files, and the share of the requests of all traces."""

    asked: Asked
    scratch: Path
    share: float

    @property
    def cost(self) -> Path:
        """The file of the cost model."""
        return self.scratch / "cost.json"

    def number(self, of_all: int, least: int = 1) -> int:
        """The share of so many requests, as far as there are enough."""
        return max(least, round(of_all * self.share))

    @property
    def w2(self) -> str:
        return W2.format(self.number(64, least=32))

    @property
    def w5(self) -> str:
        return W5.format(self.number(256, least=64))

    def bursts(self, output_tok_s: float) -> str:
        """Bursts at a share of a rate, in output tokens a second."""
        rate = BURST_SHARE * output_tok_s / MEAN_BURST_OUTPUT
        return BURSTS.format(rate, self.number(300))


class Compared(NamedTuple):
    """One trace, once: simulated, and as its clients saw it."""

    trace: str
    told: SimFigures
    real: Played


class _Written(msgspec.Struct, frozen=True):
    """The part of an answer that names the file of a flight record."""

    path: str


class _Run(msgspec.Struct, frozen=True):
    figures: SimFigures


class _Report(msgspec.Struct, frozen=True):
    """The part of what `quire sim --json` writes that is read here."""

    runs: tuple[_Run, ...]


def calibrate(rig: Rig, round_index: int) -> str:
    """Fit the cost model to a load and to all that came before; return what the command says of the
    fit."""
    url, client = rig.asked.address.url, rig.scratch / "client.json"
    lone = ("bench", "latency", "--url", url, "--requests", "12", "--output-tokens", "32")
    _quire(*lone, "--repeats", "1", "--json", str(client))
    for shape, number in SEEN:
        played(rig, shape.format(rig.number(number)), SEEN_SEED + round_index)
    ask = urllib.request.Request(f"{url}/v1/models/{rig.asked.model}/flight_record", method="POST")
    with urllib.request.urlopen(ask, timeout=60) as answer:
        record = msgspec.json.decode(answer.read().splitlines()[-1], type=_Written).path
    return _quire(
        *("sim", "--calibrate", str(rig.cost)),
        *("--record", record, "--client", str(client)),
    )


def _quire(*words: str) -> str:
    return subprocess.run(
        (*QUIRE_COMMAND, *words), stdout=subprocess.PIPE, check=True, text=True
    ).stdout


def played(rig: Rig, trace: str, seed: int) -> Played:
    """Send a trace to the server. No two traces or seeds have prompts that begin alike."""
    return play(read_trace(trace, seed).load, rig.asked, f"{trace} {seed}")


def compared(rig: Rig, trace: str, seed: int) -> Compared:
    """Send a trace to the server and to the simulation."""
    real = played(rig, trace, seed)
    path = rig.scratch / "sim.json"
    _quire("sim", trace, "--cost", str(rig.cost), "--seed", str(seed), "--json", str(path))
    (run,) = msgspec.json.decode(path.read_bytes(), type=_Report).runs
    print(f"compared: {trace}", flush=True)
    return Compared(trace, run.figures, real)


def one_round(rig: Rig, round_index: int, bursts: str) -> tuple[str, list[Compared]]:
    """Return what the calibration says, and each trace, simulated and real. `bursts` is the third
    trace; where it is empty, the rate of W5 says it."""
    fit = calibrate(rig, round_index)
    w2 = compared(rig, rig.w2, round_index)
    w5 = compared(rig, rig.w5, round_index)
    last = compared(rig, bursts or rig.bursts(w5.real.output_tok_s), round_index)
    return fit, [w2, w5, last]


def row_of(name: str, rounds: Sequence[Compared]) -> TraceRow:
    """Return the medians over the rounds of a trace."""

    def pair(kind: str, percentile: str) -> Pair:
        return Pair(
            median(getattr(getattr(each.told, kind), percentile) for each in rounds),
            median(getattr(getattr(each.real, kind), percentile) for each in rounds),
        )

    return TraceRow(
        name,
        rounds[0].trace,
        {
            kind: (pair(kind, "p50_ms"), pair(kind, "p99_ms"))
            for kind in ("first_token", "inter_token", "end_to_end")
        },
        Pair(
            median(each.told.output_tok_s for each in rounds),
            median(each.real.output_tok_s for each in rounds),
        ),
    )


class _Config(msgspec.Struct, frozen=True):
    vocab_size: int


def measured(folder: Path, share: float, num_rounds: int) -> tuple[str, tuple[TraceRow, ...]]:
    """Return what the last calibration said, and the rows of one model."""
    config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Config)
    rounds: list[list[Compared]] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        recorder = ("--flight-recorder-minutes", "60", "--flight-recorder-dir", str(scratch))
        launch = Launch("quire", QUIRE, QUIRE.program, folder, recorder)
        log = scratch / "server.log"
        with running(launch, log_path=log, start_timeout_s=START_TIMEOUT_S) as server:
            address = ServerAddress(HOST, server.port)
            rig = Rig(Asked(address, QUIRE.served_name, config.vocab_size), scratch, share)
            for index in range(num_rounds):
                bursts = rounds[0][-1].trace if rounds else ""
                fit, found = one_round(rig, index, bursts)
                rounds.append(found)
    by_trace = zip(("W2", "W5", "bursts"), zip(*rounds, strict=True), strict=True)
    return fit, tuple(row_of(name, each) for name, each in by_trace)


def main(argv: Sequence[str] | None = None) -> None:
    """Calibrate, compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulated", description=__doc__)
    parser.add_argument("--model", default=BUNDLED, help="a folder [the bundled model]")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of a trace [1]")
    parser.add_argument("--rounds", type=int, default=3, help="of each trace [3]")
    parser.add_argument("--record", action="store_true", help="keep it in bench/records/simulated")
    words = sys.argv[1:] if argv is None else list(argv)
    flags = parser.parse_args(words)
    bundled = Path(str(files("quire.models") / BUNDLED))
    folder = bundled if flags.model == BUNDLED else Path(flags.model)
    busy = busy_cores()
    fit, rows = measured(folder, flags.share, flags.rounds)
    record = SimulatedRecord(
        datetime.now(UTC).strftime(DATE_FORMAT),
        read_commit(REPOSITORY),
        without_folders(shlex.join(("python", "-m", "bench.simulated", *words))),
        read_machine(),
        busy,
        folder.name,
        fit,
        rows,
    )
    if flags.record:
        print(record.save())
    print(fit)
    print(simulated_table(record))


if __name__ == "__main__":
    main()
