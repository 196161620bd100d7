"""Comparisons are kept in `records`, one JSON file each, and RESULTS.md is made of them.

`python -m bench.records` writes that page anew.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import msgspec

from bench.machine import Machine
from bench.markdown import table
from bench.report import number
from bench.results import Comparison, Medians, Row, ServerFacts, rows
from bench.workloads import TRACED, WORKLOADS

FOLDER = Path(__file__).parent / "records"
RESULTS = Path(__file__).parent / "RESULTS.md"
DATE_FORMAT = "%Y-%m-%d %H:%M UTC"
STALE_AFTER = timedelta(days=1)
RANDOM_MODELS = "bench-"
REAL = "real weights"
VECTORS = ((("amx_bf16",), "AMX"), (("avx512_bf16",), "AVX-512 BF16"), (("avx2",), "AVX2"))
"""The instructions that decide how fast a CPU multiplies, the fastest first, and their names."""


class Ratio(msgspec.Struct, frozen=True):
    """Throughput of Quire over the peer's, over the rounds of one comparison."""

    median: float
    least: float
    most: float


class WorkloadRecord(msgspec.Struct, frozen=True):
    """One workload of a comparison. Throughput is in `unit`, times are in milliseconds."""

    workload: str
    unit: str
    first: Medians
    second: Medians
    ratio: Ratio | None
    remarks: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """One comparison of two servers: where and how it was made, and what came out.

    `read_gb_s` and `bf16_gflop_s` are the ceilings of the machine in the same run. `scale` is the
    share of each workload's requests that ran. `prompts` says what the prompts are made of.
    """

    date: str
    commit: str
    command: str
    model: str
    machine: Machine
    read_gb_s: float
    bf16_gflop_s: float
    servers: tuple[ServerFacts, ServerFacts]
    workloads: tuple[WorkloadRecord, ...]
    scale: float = 1.0
    prompts: str = "words"

    @property
    def file_name(self) -> str:
        """Date, peer, model and workloads; no two comparisons begin in the same minute."""
        day = re.sub(r"[ :]", "-", self.date.removesuffix(" UTC"))
        names = "-".join(each.workload for each in self.workloads)
        return f"{day}-{self.servers[1].label}-{self.model}-{names}.json"

    @property
    def measured(self) -> datetime:
        return datetime.strptime(self.date, DATE_FORMAT)


def record_of(comparison: Comparison, *, scale: float = 1.0) -> Record:
    """Return what is kept of a comparison: medians and ratios, not every request."""
    return Record(
        date=comparison.date,
        commit=comparison.commit,
        command=comparison.command,
        model=comparison.model,
        machine=comparison.machine,
        read_gb_s=round(comparison.ceilings.read_gb_s, 1),
        bf16_gflop_s=round(comparison.ceilings.bf16_gflop_s),
        servers=comparison.servers,
        workloads=tuple(map(_workload_record, rows(comparison))),
        scale=scale,
        prompts=comparison.prompts,
    )


def _workload_record(row: Row) -> WorkloadRecord:
    found = row.ratios
    ratio = Ratio(*(round(f(found), 2) for f in (median, min, max))) if found else None
    return WorkloadRecord(
        row.workload.name, row.workload.unit, row.first, row.second, ratio, row.remarks
    )


def save(record: Record, folder: Path = FOLDER) -> Path:
    """Write the record; return its file."""
    path = folder / record.file_name
    folder.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return path


def load(folder: Path = FOLDER) -> list[Record]:
    """Return all records, the oldest first."""
    records = [
        msgspec.json.decode(path.read_bytes(), type=Record) for path in folder.glob("*.json")
    ]
    return sorted(records, key=lambda record: (record.date, record.file_name))


def machine_kind(machine: Machine) -> str:
    """Name the maker of a CPU, its cores, and the widest instructions it multiplies with."""
    maker = "Intel" if "Intel" in machine.cpu else "AMD" if "AMD" in machine.cpu else machine.cpu
    found = (name for flags, name in VECTORS if set(flags) <= set(machine.cpu_flags))
    return f"{maker}, {machine.num_cores} cores, {next(found, 'no vectors of interest')}"


def results_page(records: Sequence[Record]) -> str:
    """Return the newest ratio of each kind of machine, workload, model, options and peer."""
    newest = _newest(records)
    by_machine: dict[str, list[tuple[Record, WorkloadRecord]]] = {}
    for key in sorted(newest):
        by_machine.setdefault(f"{key[0]}: {key[1]}", []).append(newest[key])
    parts = [_PREFACE]
    for kind, found in by_machine.items():
        last = max(record.measured for record, _ in found)
        parts.append(f"## {kind}\n\n{table([_HEADINGS, *(_cells(*each, last) for each in found)])}")
    return "\n\n".join(parts) + "\n"


def real_table(records: Sequence[Record]) -> str:
    """Return the newest comparisons on real weights: throughput of both and the median ratio."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for key, (record, each) in sorted(_newest(records).items()):
        if weights_kind(record) == REAL:
            first, second = record.servers
            row = cells.setdefault((key[0], first.options, second.label), {})
            figures = f"{number(each.first.throughput)} / {number(each.second.throughput)}"
            row[each.workload] = f"{figures}: {ratio_text(each.ratio)}"
    if not cells:
        return "Not recorded yet: `python -m bench.real --record` does it."
    workloads = sorted({name for row in cells.values() for name in row})
    headings = ["machine", "Quire's options", "peer", *map(_heading, workloads)]
    rows = [
        [
            machine,
            f"`{options}`" if options else "defaults",
            peer,
            *(row.get(w, "") for w in workloads),
        ]
        for (machine, options, peer), row in cells.items()
    ]
    return table([headings, *rows])


def _heading(name: str) -> str:
    """Return the name of a workload with its clients, its tokens and its unit."""
    if name == TRACED.name:
        return f"{name}: {TRACED.concurrency} clients, lengths of a trace, {TRACED.unit}"
    each = WORKLOADS[name]
    clients = "1 client" if each.concurrency == 1 else f"{each.concurrency} clients"
    lengths = f"{each.num_prompt_tokens} tokens in, {each.num_output_tokens} out"
    return f"{name}: {clients}, {lengths}, {each.unit}"


def _newest(
    records: Iterable[Record],
) -> dict[tuple[str, ...], tuple[Record, WorkloadRecord]]:
    return {_key(record, each): (record, each) for record, each in _shown(records)}


_PREFACE = """# Results

This page has the newest comparison for each kind of machine, workload, model and peer, made by
`python -m bench.compare --record`. The [records](records) contain the command, machine, ceilings,
versions and remarks. [README.md](README.md) explains the workloads and figures, says how to repeat
a comparison, and names the decisions with measurements made by hand.

Random weights with random words test the machinery; real weights run on human prompts (MT-bench).
Ratios are Quire over the peer: the median over rounds, with the minimum and the maximum. A row that
is a day or more older than the newest one of its machine is *stale*: much may have changed since.
`python -m bench.records` generates this page."""
_HEADINGS = (
    *("workload", "model", "options", "peer", "unit", "Quire", "peer's", "ratio", "measured"),
)


def _shown(records: Iterable[Record]) -> Iterator[tuple[Record, WorkloadRecord]]:
    """Comparisons with others; those of Quire with itself stay in their files."""
    for record in records:
        if not record.servers[1].label.startswith("quire"):
            yield from ((record, each) for each in record.workloads if each.ratio is not None)


def _key(record: Record, each: WorkloadRecord) -> tuple[str, ...]:
    first, second = record.servers
    kind = machine_kind(record.machine)
    return (
        *(kind, weights_kind(record), each.workload, record.model, record.prompts),
        *(first.options, second.label, second.options),
    )


def weights_kind(record: Record) -> str:
    """Return "random weights" or "real weights": checkpoints of `bench.make_models` are random."""
    return "random weights" if record.model.startswith(RANDOM_MODELS) else REAL


def ratio_text(ratio: Ratio | None) -> str:
    """Return the median with the least and the most, or nothing where no round was valid."""
    if ratio is None:
        return ""
    return f"**{ratio.median:.2f}** ({ratio.least:.2f}-{ratio.most:.2f})"


def _cells(record: Record, each: WorkloadRecord, last: datetime) -> list[str]:
    first, second = record.servers
    stale = ", *stale*" if record.measured < last - STALE_AFTER else ""
    return [
        each.workload,
        record.model if record.prompts == "words" else f"{record.model}, {record.prompts}",
        f"`{first.options}`" if first.options else "",
        f"{second.label} `{second.options}`" if second.options else second.label,
        each.unit,
        number(each.first.throughput),
        number(each.second.throughput),
        ratio_text(each.ratio),
        f"{record.date[:10]}, {record.commit[:7]}{stale}",
    ]


def main() -> None:
    """Write the page."""
    RESULTS.write_text(results_page(load()), encoding="utf-8")


if __name__ == "__main__":
    main()
