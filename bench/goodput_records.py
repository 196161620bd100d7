"""Records of goodput under rules for the share of prompts, and the table made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.contenders import BUDGETS, CONTENDERS, TARGETS, VLLM
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
        """Requests in time with targets for each that is under the best budget."""
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
    """Return the newest row of each trace and load, in their order."""
    found: dict[tuple[str, float], GoodputRow] = {}
    for path in sorted(folder.glob("*.json")):
        record = msgspec.json.decode(path.read_bytes(), type=GoodputRecord)
        found |= {(each.trace, each.load): each for each in record.rows}
    return [found[key] for key in sorted(found)]


def goodput_table(rows: Sequence[GoodputRow]) -> str:
    """Return the shares in time as Markdown, after the capacity for each trace."""
    told = {
        row.trace: f"{row.trace}: the first {row.num_requests:,} requests; capacity "
        f"{row.capacity_req_s:.2f} a second (budget {row.most_served_by})"
        for row in rows
    }
    others = [each.name for each in CONTENDERS if each not in (*BUDGETS, TARGETS)]
    heads = (
        *("trace", "load", "best budget", f"vLLM, {VLLM.name}", *others, TARGETS.name),
        *("of the best budget", "bound"),
    )
    return "\n\n".join(("\n".join(told.values()), table([heads, *(_cells(row) for row in rows)])))


def _cells(row: GoodputRow) -> Sequence[str]:
    names = (each.name for each in CONTENDERS if each not in BUDGETS)
    best = max(BUDGETS, key=lambda each: row.in_time[each.name])
    return (
        row.trace,
        f"{row.load:g}",
        f"{row.best_budget:.1%} ({best.name})",
        *(f"{row.in_time[name]:.1%}" for name in (VLLM.name, *names)),
        f"{row.gain:.2f}",
        f"{row.bound:.1%}",
    )
