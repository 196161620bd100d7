"""Records of plans beside what was measured, and the tables made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.machine import Machine
from bench.markdown import table
from bench.pairs import Pair
from bench.record_files import save_record

FOLDER = Path(__file__).parent / "records" / "plans"


class BurstRow(msgspec.Struct, frozen=True):
    """Requests that come at once: medians of times, in milliseconds, and output tokens a second."""

    num_requests: int
    first_token_ms: Pair
    inter_token_ms: Pair
    output_tok_s: Pair


class PlannedModel(msgspec.Struct, frozen=True):
    """One model: the lines of its memory receipt, in bytes, and its bursts. `bytes_s` and `flops_s`
    are what the plan has measured of the machine."""

    model: str
    num_input_tokens: int
    num_output_tokens: int
    bytes_s: float
    flops_s: float
    memory: Mapping[str, Pair]
    bursts: tuple[BurstRow, ...]


class PlannedRecord(msgspec.Struct, frozen=True):
    """The plans of some models on one machine, beside what was measured there. `busy_cores` are
    those that other programs took just before."""

    date: str
    commit: str
    command: str
    machine: Machine
    busy_cores: float
    models: tuple[PlannedModel, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record; return its file."""
        return save_record(self, folder, self.date)


def load_newest(folder: Path = FOLDER) -> PlannedRecord:
    """Return the newest record. Raises ValueError where there is none."""
    return msgspec.json.decode(max(folder.glob("*.json")).read_bytes(), type=PlannedRecord)


def planned_tables(record: PlannedRecord) -> str:
    """Return the times and the memory of all models as Markdown."""
    preface = (
        f"`{record.command}`, {record.date}, {record.commit}, {record.machine.describe()}; other "
        f"programs took {record.busy_cores:.1f} cores just before."
    )
    return "\n\n".join((preface, _times(record.models), _memory(record.models)))


def _times(models: Sequence[PlannedModel]) -> str:
    rows: list[Sequence[str]] = [
        (
            *("model", "tokens in, out", "requests"),
            *("TTFT ms, planned", "measured", "error"),
            *("ITL ms, planned", "measured", "error"),
            *("output tok/s, planned", "measured", "error"),
        )
    ]
    for model in models:
        lengths = f"{model.num_input_tokens}, {model.num_output_tokens}"
        for burst in model.bursts:
            pairs = (burst.first_token_ms, burst.inter_token_ms, burst.output_tok_s)
            shown = (cell for pair in pairs for cell in pair.cells())
            rows.append((model.model, lengths, str(burst.num_requests), *shown))
    return table(rows)


def _memory(models: Sequence[PlannedModel]) -> str:
    rows: list[Sequence[str]] = [("model", "MiB of", "planned", "at the start", "error")]
    for model in models:
        for kind, pair in model.memory.items():
            mib = Pair(pair.told / 2**20, pair.measured / 2**20)
            rows.append((model.model, kind, *mib.cells()))
    return table(rows)
