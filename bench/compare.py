"""Start Quire and a peer, run the same workloads on both in turn, and print the ratio.

    python -m bench.compare --model MODEL_DIR --peer transformers --workloads W2,W3 --repeats 3

Both servers stay up, and while one is measured the other is stopped: A B, then B A, since who comes
first in a round may be some percent slower for it; each round has prompts of its own. Exits with 1
if any request failed or was answered with the wrong number of tokens.
"""

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.ceilings import Ceilings, measure_ceilings, weight_bytes
from bench.load import LoadResult, Target, run_workload
from bench.machine import busy_s, read_commit, read_machine, without_folders
from bench.records import RESULTS, load, record_of, results_page, save
from bench.report import progress_line, section
from bench.requests import Ask, RequestSource, build_source
from bench.results import Comparison, Run, ServerFacts
from bench.servers import Launch, Server, running
from bench.settings import Settings, parse_settings
from quire.workbench.bench.workloads import Workload

REPOSITORY = Path(__file__).resolve().parents[1]
IDLE_WATCH_S = 3.0


@dataclass(frozen=True, slots=True)
class Bench:
    """Two servers that are up, and what to ask of them."""

    settings: Settings
    source: RequestSource
    servers: tuple[Server, Server]

    def warm_up(self) -> None:
        """Run each workload's shape once on each server, so that none pays for lazy set-up."""
        for server in self.servers:
            for workload in self.settings.workloads:
                shape = workload.warm_up()
                asks = self.source.asks(shape, self.settings.seed - 1)
                result = self._load(server, shape, asks)
                if result.num_failed:
                    raise SystemExit(f"{server.launch.label}: {result.first_failure}")
                name = f"{server.launch.label} {workload.name}"
                print(f"warm-up {name}: {result.wall_s:.1f} s", flush=True)

    def idle_cores(self) -> tuple[float, float]:
        """Return the cores that each server takes while nobody asks it anything."""
        before_s = [server.cpu_s() for server in self.servers]
        time.sleep(IDLE_WATCH_S)
        first, second = (
            (server.cpu_s() - start_s) / IDLE_WATCH_S
            for server, start_s in zip(self.servers, before_s, strict=True)
        )
        return first, second

    def measure(self) -> tuple[Run, ...]:
        """Run all rounds: a workload on both servers, every second round in the other order."""
        runs = []
        for round_index in range(self.settings.num_repeats):
            for workload in self.settings.workloads:
                pairs = (self.servers, self.servers[::-1])
                for server, idle in pairs if round_index % 2 == 0 else pairs[::-1]:
                    runs.append(self._run(server, idle, workload, round_index))
                    print(progress_line(runs[-1], self.settings.num_repeats), flush=True)
        return tuple(runs)

    def _load(self, server: Server, workload: Workload, asks: Sequence[Ask]) -> LoadResult:
        peer = server.launch.peer
        target = Target(
            port=server.port,
            model_name=peer.model_name(server.launch.model_path),
            extra_fields=peer.extra_fields,
        )
        return run_workload(target, workload, asks, self.settings.run_timeout_s)

    def _run(self, server: Server, idle: Server, workload: Workload, round_index: int) -> Run:
        asks = self.source.asks(workload, self.settings.seed + round_index)
        clocks: tuple[Callable[[], float], ...] = (
            busy_s,
            server.cpu_s,
            idle.cpu_s,
            time.process_time,
        )
        before_s = [clock() for clock in clocks]
        with idle.paused():
            load = self._load(server, workload, asks)
        busy, served, idled, ours = (
            clock() - start_s for clock, start_s in zip(clocks, before_s, strict=True)
        )
        server.check_alive()
        idle.check_alive()
        return Run(
            label=server.launch.label,
            workload=workload,
            round_index=round_index,
            load=load,
            server_cores=served / load.wall_s,
            idle_server_cores=idled / load.wall_s,
            other_cores=max(busy - served - idled - ours, 0) / load.wall_s,
        )

    def compare(self, command: str, ceilings: Ceilings) -> Comparison:
        """Warm up, run all rounds, and return what was measured."""
        self.warm_up()
        idle_cores = self.idle_cores()
        runs = self.measure()
        first, second = map(_facts, self.servers, idle_cores)
        return Comparison(
            date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            commit=read_commit(REPOSITORY),
            command=command,
            model=self.settings.model_dir.resolve().name,
            prompts=self.source.name,
            num_weight_bytes=weight_bytes(self.settings.model_dir),
            machine=read_machine(),
            ceilings=ceilings,
            servers=(first, second),
            runs=runs,
        )


def _facts(server: Server, idle_cores: float) -> ServerFacts:
    return ServerFacts(
        label=server.launch.label,
        version=server.launch.version(),
        options=without_folders(shlex.join(server.launch.options)),
        idle_cores=idle_cores,
        resident_gib=server.resident_gib(),
    )


def compare(settings: Settings, command: str, log_dir: Path, ceilings: Ceilings) -> Comparison:
    """Start both servers, measure them and stop them."""
    source = build_source(settings.model_dir, settings.data_dir)

    def start(launch: Launch, stack: ExitStack) -> Server:
        log_path = log_dir / f"{launch.label}.log"
        timeout_s = settings.start_timeout_s
        return stack.enter_context(running(launch, log_path=log_path, start_timeout_s=timeout_s))

    with ExitStack() as stack:
        first, second = (start(launch, stack) for launch in settings.launches)
        return Bench(settings, source, (first, second)).compare(command, ceilings)


def end_on_sigterm(signal_number: int, _frame: object) -> None:
    """Unwind instead of dying, so that the servers are stopped."""
    sys.exit(128 + signal_number)


def main() -> None:
    """Compare, print, and write what was asked for."""
    signal.signal(signal.SIGTERM, end_on_sigterm)
    settings = parse_settings(sys.argv[1:], os.environ)
    command = without_folders(shlex.join(["python", "-m", "bench.compare", *sys.argv[1:]]))
    log_dir = settings.log_dir or Path(tempfile.mkdtemp(prefix="quire-bench-"))
    log_dir.mkdir(parents=True, exist_ok=True)
    print(f"server logs: {log_dir}", flush=True)
    before = measure_ceilings()
    comparison = compare(settings, command, log_dir, before)
    comparison = replace(comparison, ceilings=before.or_better(measure_ceilings()))
    text = section(comparison)
    print(f"\n{text}")
    if settings.json_path is not None:
        settings.json_path.write_bytes(msgspec.json.encode(comparison))
    if settings.is_recorded:
        print(f"recorded in {save(record_of(comparison)).name}")
        RESULTS.write_text(results_page(load()), encoding="utf-8")
    if any(run.faults for run in comparison.runs):
        sys.exit("some requests failed or were answered with the wrong number of tokens")


if __name__ == "__main__":
    main()
