"""Holds what a comparison measured, and the ratios that follow from it.

A ratio is only taken between the two runs of one round, which had the same prompts and followed
one another; a round in which either server failed a request or answered too short has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.ceilings import Ceilings
from bench.load import LoadResult
from bench.machine import Machine
from quire.workbench.bench.workloads import Workload

# Cores' worth of CPU, averaged over a run, above which someone else may have slowed it.
MAX_IDLE_SERVER_CORES = 0.05
MAX_OTHER_CORES = 0.15


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one server in one round. `*_cores` is CPU time over wall time.

    `idle_server_cores` is the other server's share, which should be nothing; `other_cores` what
    is left after both servers and the load client.
    """

    label: str
    workload: Workload
    round_index: int
    load: LoadResult
    server_cores: float
    idle_server_cores: float
    other_cores: float

    @property
    def throughput(self) -> float:
        """Tokens a second, of the kind that the workload counts."""
        if self.workload.counts_prompt_tokens:
            return self.load.total_tok_s
        return self.load.output_tok_s

    @property
    def faults(self) -> list[str]:
        """The reasons why the run's figures are worthless."""
        load, found = self.load, []
        if load.num_failed:
            found.append(f"{load.num_failed} failed")
        if load.num_wrong_length:
            found.append(f"{load.num_wrong_length} of wrong length")
        return found

    @property
    def doubts(self) -> list[str]:
        """The signs that something disturbed the run."""
        found = []
        if self.load.num_without_usage:
            found.append("tokens counted by text events")
        if self.idle_server_cores > MAX_IDLE_SERVER_CORES:
            found.append(f"idle server took {self.idle_server_cores:.2f} cores")
        if self.other_cores > MAX_OTHER_CORES:
            found.append(f"others took {self.other_cores:.2f} cores")
        return found


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server besides its speed. `idle_cores` is measured after warm-up with no load at all."""

    label: str
    version: str
    options: str
    idle_cores: float
    resident_gib: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything a reader needs to judge, and to repeat, one comparison."""

    date: str
    commit: str
    command: str
    model: str
    prompts: str
    num_weight_bytes: int
    machine: Machine
    ceilings: Ceilings
    servers: tuple[ServerFacts, ServerFacts]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Medians:
    """Medians over one server's runs of a workload; None where nothing was measured."""

    throughput: float | None
    first_token_p50_ms: float | None
    inter_token_p50_ms: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: both servers' medians and the ratios first / second, one for each pair."""

    workload: Workload
    first: Medians
    second: Medians
    ratios: tuple[float, ...]
    num_rounds: int
    remarks: tuple[str, ...]


def _median(runs: Sequence[Run], measure: Callable[[Run], float | None]) -> float | None:
    values = [value for value in map(measure, runs) if value is not None]
    return median(values) if values else None


def _medians(runs: Sequence[Run]) -> Medians:
    return Medians(
        throughput=_median(runs, lambda run: run.throughput),
        first_token_p50_ms=_median(runs, lambda run: run.load.first_token.p50_ms),
        inter_token_p50_ms=_median(runs, lambda run: run.load.inter_token.p50_ms),
    )


def build_row(workload: Workload, runs: Sequence[Run], labels: tuple[str, str]) -> Row:
    """Reduce all runs of one workload."""
    mine = [run for run in runs if run.workload.name == workload.name]
    first, second = ([run for run in mine if run.label == label] for label in labels)
    pairs = list(zip(first, second, strict=True))
    return Row(
        workload=workload,
        first=_medians([run for run in first if not run.faults]),
        second=_medians([run for run in second if not run.faults]),
        ratios=tuple(a.throughput / b.throughput for a, b in pairs if not (a.faults or b.faults)),
        num_rounds=len(pairs),
        remarks=tuple(
            f"round {run.round_index + 1}, {run.label}: {', '.join(run.faults + run.doubts)}"
            for run in mine
            if run.faults or run.doubts
        ),
    )


def rows(comparison: Comparison) -> list[Row]:
    """One row for each workload, in the order in which they ran."""
    workloads = {run.workload.name: run.workload for run in comparison.runs}
    labels = (comparison.servers[0].label, comparison.servers[1].label)
    return [build_row(workload, comparison.runs, labels) for workload in workloads.values()]
