"""Records of lists that a model was asked for under JSON schemas, and the table of the newest."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.machine import Machine
from bench.markdown import table
from bench.record_files import record_path

FOLDER = Path(__file__).parent / "records" / "json_lists"


class ListTally(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answers in one layout of JSON. `num_items` are those of whole answers, as far as they
    were asked for; `num_cut` answers did not end within their tokens. `num_forced` of the tokens
    were decided by the grammar, and not drawn."""

    layout: str
    num_items: int = 0
    num_empty: int = 0
    num_invalid: int = 0
    num_cut: int = 0
    num_tokens: int = 0
    num_forced: int = 0
    seconds: float = 0.0

    @classmethod
    def summed(cls, tallies: Sequence["ListTally"], seconds: float, num_forced: int) -> "ListTally":
        """Return the sum of the tallies of one layout, which took `seconds` in all."""
        return cls(
            tallies[0].layout,
            sum(each.num_items for each in tallies),
            sum(each.num_empty for each in tallies),
            sum(each.num_invalid for each in tallies),
            sum(each.num_cut for each in tallies),
            sum(each.num_tokens for each in tallies),
            num_forced,
            round(seconds, 1),
        )


class JsonListRecord(msgspec.Struct, frozen=True):
    """All tasks, put to one model in each layout of JSON."""

    date: str
    commit: str
    model: str
    dtype: str
    machine: Machine
    num_tasks: int
    num_asked: int
    max_tokens: int
    tallies: tuple[ListTally, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record; return its file."""
        path = record_path(folder, self.date)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        return path


def newest_lists(folder: Path = FOLDER) -> JsonListRecord:
    """Return the newest record. Raises ValueError where there is none."""
    return msgspec.json.decode(max(folder.glob("*.json")).read_bytes(), type=JsonListRecord)


def list_table(record: JsonListRecord) -> str:
    """Return what the record is of, and a row for each layout."""
    preface = (
        f"{record.num_tasks} tasks of {record.num_asked} items in all, greedy, at most "
        f"{record.max_tokens} tokens each, {record.model} in {record.dtype}. "
        f"`python -m bench.json_lists`, {record.date}, at {record.commit[:7]}, on "
        f"{record.machine.describe()}."
    )
    head = ["White space", "items", "empty lists", "not valid", "cut", "tokens", "forced"]
    rows = [
        [
            each.layout,
            f"{each.num_items} of {record.num_asked}",
            *map(str, (each.num_empty, each.num_invalid, each.num_cut)),
            f"{each.num_tokens:,}",
            f"{each.num_forced:,}",
        ]
        for each in record.tallies
    ]
    return f"{preface}\n\n{table([head, *rows])}"
