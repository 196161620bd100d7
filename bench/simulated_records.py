"""Records of simulated runs beside real ones, and the table made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.machine import Machine
from bench.markdown import table
from bench.pairs import Pair
from bench.record_files import save_record

FOLDER = Path(__file__).parent / "records" / "simulated"
SHOWN = {"first_token": "TTFT", "inter_token": "ITL", "end_to_end": "end to end"}


class TraceRow(msgspec.Struct, frozen=True):
    """One trace: of each kind of time the median and the 99th percentile, in milliseconds, and
    output tokens a second."""

    name: str
    trace: str
    times: Mapping[str, tuple[Pair, Pair]]
    output_tok_s: Pair


class SimulatedRecord(msgspec.Struct, frozen=True):
    """Simulated and real runs of one model on one machine. `busy_cores` are those that other
    programs took just before; `fit` is what the calibration said."""

    date: str
    commit: str
    command: str
    machine: Machine
    busy_cores: float
    model: str
    fit: str
    rows: tuple[TraceRow, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record; return its file."""
        return save_record(self, folder, self.date)


def simulated_table(record: SimulatedRecord) -> str:
    """Return the times of all traces as Markdown."""
    preface = (
        f"`{record.command}`, {record.date}, {record.commit}, {record.machine.describe()}; other "
        f"programs took {record.busy_cores:.1f} cores just before."
    )
    rows: list[Sequence[str]] = [
        ("trace", "ms", "p50, simulated", "real", "error", "p99, simulated", "real", "error")
    ]
    for row in record.rows:
        for kind, (p50, p99) in row.times.items():
            rows.append((row.name, SHOWN[kind], *p50.cells(), *p99.cells()))
        rows.append((row.name, "output tok/s", *row.output_tok_s.cells(), "", "", ""))
    traces = "\n".join(f"- {row.name}: `{row.trace}`" for row in record.rows)
    return "\n\n".join((preface, table(rows), traces))
