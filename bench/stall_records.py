"""Records of outputs beside long prompts on several servers, and the tables made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench.machine import Machine
from bench.markdown import table
from bench.record_files import save_record
from bench.records import Ratio, machine_kind, ratio_text
from bench.report import number
from bench.stall_load import StallFigures, StallLoad

FOLDER = Path(__file__).parent / "records" / "stalls"
NAMES = StallFigures.__struct_fields__
RATES = frozenset({"total_tok_s"})
"""Figures that are better the larger they are; of times the smaller is better."""


class StallServer(msgspec.Struct, frozen=True):
    """A server that was measured. `model` is the name of its checkpoint or file."""

    label: str
    version: str
    options: str
    model: str


class StallRow(msgspec.Struct, frozen=True):
    """One server: medians over the rounds without a failure, how many rounds had one, and by how
    much the first server is better (above 1) or worse, in each figure."""

    server: StallServer
    figures: StallFigures
    num_invalid: int
    ratios: Mapping[str, Ratio]


class StallRecord(msgspec.Struct, frozen=True):
    """Servers under one load, in turn. `decode_step_ms` is the time between two tokens of the first
    server without long prompts, where its target was made of it; `busy_cores` are those that other
    programs took just before."""

    date: str
    commit: str
    command: str
    machine: Machine
    busy_cores: float
    model: str
    prompts: str
    load: StallLoad
    num_rounds: int
    decode_step_ms: float | None
    rows: tuple[StallRow, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record; return its file."""
        return save_record(self, folder, self.date)


def load_stalls(folder: Path = FOLDER) -> list[StallRecord]:
    """Return all records, the oldest first."""
    paths = sorted(folder.glob("*.json"))
    return [msgspec.json.decode(path.read_bytes(), type=StallRecord) for path in paths]


def build_rows(
    servers: Sequence[StallServer], rounds: Sequence[Mapping[str, StallFigures]]
) -> tuple[StallRow, ...]:
    """Return a row for each server. A round has the figures of each label; ratios are taken within
    rounds."""
    return tuple(_row(server, servers[0].label, rounds) for server in servers)


def _row(server: StallServer, first: str, rounds: Sequence[Mapping[str, StallFigures]]) -> StallRow:
    own = [each[server.label] for each in rounds]
    pairs = [(each[first], each[server.label]) for each in rounds]
    return StallRow(
        server=server,
        figures=StallFigures(*(_over(median, _values(own, name)) for name in NAMES)),
        num_invalid=sum(each.total_tok_s is None for each in own),
        ratios={} if server.label == first else dict(_ratios(pairs)),
    )


def _values(figures: Sequence[StallFigures], name: str) -> list[float]:
    return [value for each in figures if (value := getattr(each, name)) is not None]


def _over(reduce: Callable[[list[float]], float], values: list[float]) -> float | None:
    return reduce(values) if values else None


def _ratios(pairs: Sequence[tuple[StallFigures, StallFigures]]) -> Iterator[tuple[str, Ratio]]:
    for name in NAMES:
        found = [
            value / other if name in RATES else other / value
            for mine, theirs in pairs
            if (value := getattr(mine, name)) and (other := getattr(theirs, name))
        ]
        if found:
            yield name, Ratio(*(round(reduce(found), 2) for reduce in (median, min, max)))


_FIGURES = {
    "total_tok_s": "total tok/s",
    "inter_token_p50_ms": "ITL p50 ms",
    "inter_token_p99_ms": "ITL p99 ms",
    "first_token_p50_ms": "TTFT p50 ms",
}
_HEADINGS = ("model", "server", "options", *_FIGURES.values(), "measured")


def stall_tables(records: Sequence[StallRecord]) -> str:
    """Return the newest figures of each server on each model as Markdown, a table for each kind of
    machine. Behind a figure is how much better the first server of its record is."""
    newest: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for record in records:
        first = record.rows[0].server
        own = newest.setdefault((machine_kind(record.machine), first.model, _weights(first)), {})
        own.clear()
        own |= {row.server.label: _cells(record, row) for row in record.rows}
    if not newest:
        return "Not recorded yet: `python -m bench.stalls --record` does it."
    kinds: dict[str, list[list[str]]] = {}
    for key in sorted(newest):
        kinds.setdefault(key[0], []).extend(newest[key].values())
    return "\n\n".join(f"{kind}:\n\n{table([_HEADINGS, *cells])}" for kind, cells in kinds.items())


def _weights(server: StallServer) -> str:
    """Return what sets records of one model apart: the options but for the target, which is made of
    a measured time."""
    words = server.options.split()
    if "--target-itl-ms" in words:
        at = words.index("--target-itl-ms")
        del words[at : at + 2]
    return " ".join(words)


def _cells(record: StallRecord, row: StallRow) -> list[str]:
    server, invalid = row.server, f", {row.num_invalid} of {record.num_rounds} rounds invalid"
    figures = [
        f"{number(getattr(row.figures, name))}{_behind(row.ratios.get(name))}" for name in NAMES
    ]
    return [
        server.model,
        server.label + (invalid if row.num_invalid else ""),
        f"`{server.options}`" if server.options else "",
        *figures,
        f"{record.date[:10]}, {record.commit[:7]}",
    ]


def _behind(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"; {ratio_text(ratio)}"


def record_text(record: StallRecord) -> str:
    """Return how a record was made, and its table."""
    step = record.decode_step_ms
    told = "" if step is None else f" A step without long prompts took {step:.1f} ms."
    preface = (
        f"`{record.command}`, {record.date}, {record.commit}, {record.machine.describe()}; other "
        f"programs took {record.busy_cores:.1f} cores just before; rounds: {record.num_rounds}."
        f"{told}"
    )
    return f"{preface}\n\n{stall_tables([record])}"
