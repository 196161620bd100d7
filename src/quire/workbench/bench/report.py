"""The report of a benchmark: one record for JSON, and a table for people."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from quire.workbench.bench.figures import LoadFigures
from quire.workbench.bench.load import Percentiles
from quire.workbench.bench.ratios import Ratio, WorkloadRun, compare
from quire.workbench.bench.workloads import Workload

HEADER = (
    *("workload", "server", "output tok/s", "total tok/s", "TTFT ms", "ITL ms"),
    *("TPOT ms", "end to end ms", "prompt tokens", "cached", "other length", "failed"),
)
MAX_NOTES = 12


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server, and how its requests were made."""

    label: str
    url: str
    version: str | None
    model: str
    path: str
    asks_ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratios of server A to server B on one workload."""

    workload: str
    throughput: Ratio | None
    first_token: Ratio | None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All figures of every round, with what is needed to judge and repeat them."""

    date: str
    command: str
    quire: str
    python: str
    machine: str
    seed: int
    prompts: str
    notes: tuple[str, ...]
    servers: tuple[ServerFacts, ...]
    startup_s: tuple[float, ...]
    workloads: tuple[Workload, ...]
    runs: tuple[WorkloadRun, ...]

    @property
    def num_failed(self) -> int:
        return sum(run.figures.num_failed for run in self.runs)

    def runs_of(self, workload: Workload, server: ServerFacts) -> list[WorkloadRun]:
        """Return the runs of one workload on one server, round by round."""
        key = (workload.name, server.label)
        return [run for run in self.runs if (run.workload, run.label) == key]

    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the ratios of all workloads; none unless two servers were measured."""
        if len(self.servers) != 2:
            return ()
        return tuple(self._comparison(workload) for workload in self.workloads)

    def _comparison(self, workload: Workload) -> Comparison:
        first, second = (self.runs_of(workload, server) for server in self.servers)
        return Comparison(
            workload=workload.name,
            throughput=compare(first, second, throughput_of(workload)),
            first_token=compare(first, second, lambda figures: figures.first_token.p50_ms),
        )


def throughput_of(workload: Workload) -> Callable[[LoadFigures], float | None]:
    """Return the rate that the workload counts, in tokens per second."""
    if workload.counts_prompt_tokens:
        return lambda figures: figures.total_tok_s
    return lambda figures: figures.output_tok_s


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are there, None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def number(value: float | None) -> str:
    """Return a value with about three digits, `-` for None."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _spread(each: Sequence[Percentiles]) -> str:
    """Return p50/p90/p99, each the median over rounds."""
    thirds = ([p.p50_ms for p in each], [p.p90_ms for p in each], [p.p99_ms for p in each])
    return "/".join(number(middle(values)) for values in thirds)


def _lengths(figures: Sequence[LoadFigures]) -> str:
    lengths = [length for each in figures for length in each.prompt_lengths or ()]
    if not lengths:
        return "-"
    return f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)}-{max(lengths)}"


def _cells(workload: Workload, label: str, figures: Sequence[LoadFigures]) -> tuple[str, ...]:
    ratio = middle(each.hit_ratio for each in figures)
    num_requests = sum(each.num_requests for each in figures)
    return (
        workload.name,
        label,
        number(middle(each.output_tok_s for each in figures)),
        number(middle(each.total_tok_s for each in figures)),
        _spread([each.first_token for each in figures]),
        _spread([each.inter_token for each in figures]),
        number(middle(each.per_output_token.p50_ms for each in figures)),
        _spread([each.end_to_end for each in figures]),
        _lengths(figures),
        "-" if ratio is None else f"{ratio:.1%}",
        f"{sum(each.num_other_length for each in figures)}/{num_requests}",
        f"{sum(each.num_failed for each in figures)}/{num_requests}",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _server_line(server: ServerFacts) -> str:
    version = f", version {server.version}" if server.version else ""
    until = "ignore_eos asked" if server.asks_ignore_eos else "no ignore_eos: replies may be short"
    return f"{server.label}: {server.url}{version}, model {server.model}, {server.path}, {until}"


def _workload_line(workload: Workload) -> str:
    shared = f" ({workload.num_shared_tokens} shared)" if workload.num_shared_tokens else ""
    return (
        f"{workload.name}: {workload.purpose}; {workload.num_requests} requests by "
        f"{workload.concurrency} at once, {workload.num_prompt_tokens} tokens{shared} in, "
        f"{workload.num_output_tokens} out"
    )


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "none valid"
    left_out = ratio.num_rounds - ratio.num_valid
    text = f"{ratio.median:.2f} ({ratio.least:.2f}-{ratio.most:.2f})"
    return text + (f", {left_out} of {ratio.num_rounds} rounds left out" if left_out else "")


def _startup_line(startup_s: Sequence[float]) -> str:
    extremes = f"{min(startup_s):.2f}-{max(startup_s):.2f}"
    return f"startup: {median(startup_s):.2f} s to ready ({extremes}), median of {len(startup_s)}"


def _fault_lines(runs: Sequence[WorkloadRun]) -> list[str]:
    faulty = [run for run in runs if run.faults]
    lines = [
        f"round {run.round_index + 1}, {run.workload}, {run.label}: {', '.join(run.faults)}"
        + (f": {run.figures.first_failure}" if run.figures.first_failure else "")
        for run in faulty
    ]
    more = [f"and {len(lines) - MAX_NOTES} more such rounds"] if len(lines) > MAX_NOTES else []
    return lines[:MAX_NOTES] + more


def show(report: BenchReport) -> str:
    """Return the whole report as text; each figure is the median over rounds, `-` an unknown
    one."""
    lines = [*map(_server_line, report.servers), *report.notes]
    if report.startup_s:
        lines.append(_startup_line(report.startup_s))
    if report.runs:
        lines += [f"prompts: {report.prompts}", *map(_workload_line, report.workloads), ""]
        rows = [
            _cells(workload, server.label, [r.figures for r in report.runs_of(workload, server)])
            for workload in report.workloads
            for server in report.servers
        ]
        lines += [
            *_table([HEADER, *rows]),
            "latencies are p50/p90/p99, TPOT p50; medians over rounds",
        ]
    for each in report.comparisons():
        throughput, first = _ratio(each.throughput), _ratio(each.first_token)
        lines.append(f"A/B {each.workload}: tokens/s {throughput}; TTFT p50 {first}")
    return "\n".join([*lines, *_fault_lines(report.runs)])
