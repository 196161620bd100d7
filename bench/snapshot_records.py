"""Records of snapshots in traces, and the tables made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.markdown import table
from bench.record_files import save_record

FOLDER = Path(__file__).parent / "records" / "snapshots"
SERVED_FOLDER = Path(__file__).parent / "records" / "served_snapshots"


class SnapshotRow(msgspec.Struct, frozen=True):
    """A trace, the tokens of K and V that the cache has, also as a share of all of the trace, the
    model whose bytes the states have, and how many snapshots fit. `attention` is the share of the
    prompts' tokens that is found without states, `found` that by each policy of snapshots."""

    trace: str
    num_tokens: int
    kv_share: float
    model: str
    num_snapshots: int
    attention: float
    found: Mapping[str, float]


class SnapshotRecord(msgspec.Struct, frozen=True):
    """A comparison of policies."""

    date: str
    commit: str
    command: str
    rows: tuple[SnapshotRow, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record; return its file."""
        return save_record(self, folder, self.date)


def newest_rows(folder: Path = FOLDER) -> list[SnapshotRow]:
    """Return the newest row of each trace, share and model, in the order of their first records."""
    found: dict[tuple[str, float, str], SnapshotRow] = {}
    for path in sorted(folder.glob("*.json")):
        record = msgspec.json.decode(path.read_bytes(), type=SnapshotRecord)
        found |= {(each.trace, each.kv_share, each.model): each for each in record.rows}
    return list(found.values())


def snapshot_table(rows: Sequence[SnapshotRow]) -> str:
    """Return the shares as Markdown: those of each policy beside the share of attention alone."""
    names = list(rows[0].found)
    cells: list[Sequence[str]] = [
        ("trace", "KV, tokens", "of all", "states of", "snapshots", "attention alone", *names)
    ]
    cells += [
        (
            row.trace,
            f"{row.num_tokens:,}",
            f"{row.kv_share:.0%}",
            row.model,
            f"{row.num_snapshots}",
            f"{row.attention:.1%}",
            *(_share(found, row.attention) for found in row.found.values()),
        )
        for row in rows
    ]
    return table(cells)


def _share(found: float, attention: float) -> str:
    return f"{found / attention:.3f}" if attention else "-"
