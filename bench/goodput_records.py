"""Records of goodput under rules for the share of prompts, and the tables made of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from bench.contenders import BUDGETS, TARGETS
from bench.markdown import table
from bench.record_files import save_record

FOLDER = Path(__file__).parent / "records" / "goodput"


class GoodputRow(msgspec.Struct, frozen=True):
    """A trace at a load, a share of `capacity_req_s`, which the device serves under the budget
    `most_served_by`. `in_time` has the share of the requests in time under each contender; no
    scheduler has more than the share `bound`."""

    trace: str
    num_requests: int
    most_served_by: str
    capacity_req_s: float
    load: float
    bound: float
    in_time: Mapping[str, float]

    @property
    def best_budget(self) -> float:
        """The share in time under the best of the fixed budgets."""
        return max(self.in_time[each.name] for each in BUDGETS)

    @property
    def gain(self) -> float:
        """How many times as many are in time with targets as under the best budget."""
        return self.in_time[TARGETS.name] / self.best_budget if self.best_budget else 0.0


class GoodputRecord(msgspec.Struct, frozen=True):
    """A comparison of contenders."""

    date: str
    commit: str
    command: str
    rows: tuple[GoodputRow, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record; return its file."""
        return save_record(self, folder, self.date)


def newest_rows(folder: Path = FOLDER) -> list[GoodputRow]:
    """Return the newest row of each trace and load: traces in the order of their first records,
    loads in their own."""
    found: dict[tuple[str, float], GoodputRow] = {}
    for path in sorted(folder.glob("*.json")):
        record = msgspec.json.decode(path.read_bytes(), type=GoodputRecord)
        found |= {(each.trace, each.load): each for each in record.rows}
    traces = list(dict.fromkeys(trace for trace, _ in found))
    return sorted(found.values(), key=lambda each: (traces.index(each.trace), each.load))


def goodput_tables(rows: Sequence[GoodputRow]) -> str:
    """Return a Markdown table of the shares in time for each trace."""
    return "\n\n".join(_tables(rows))


def _tables(rows: Sequence[GoodputRow]) -> Iterator[str]:
    for trace, group in groupby(rows, key=lambda each: each.trace):
        found = list(group)
        first = found[0]
        yield (
            f"{trace}, {first.num_requests:,} requests; capacity {first.capacity_req_s:.2f} "
            f"requests a second (budget {first.most_served_by}):"
        )
        heads = ("load", *first.in_time, "of the best budget", "bound")
        yield table([heads, *(_cells(row) for row in found)])


def _cells(row: GoodputRow) -> Sequence[str]:
    return (
        f"{row.load:g}",
        *(f"{share:.1%}" for share in row.in_time.values()),
        f"{row.gain:.2f}",
        f"{row.bound:.1%}",
    )
