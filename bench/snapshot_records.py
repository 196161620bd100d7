"""Records of snapshots in multi-turn traces, and the table made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.markdown import table
from bench.record_files import save_record

FOLDER = Path(__file__).parent / "records" / "snapshots"


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


def newest_snapshots(folder: Path = FOLDER) -> SnapshotRecord:
    """Return the newest record. Raises ValueError where there is none."""
    newest = max(folder.glob("*.json"), key=lambda path: path.name)
    return msgspec.json.decode(newest.read_bytes(), type=SnapshotRecord)


def snapshot_table(record: SnapshotRecord) -> str:
    """Return the shares as Markdown: those of each policy beside the share of attention alone."""
    names = list(record.rows[0].found)
    rows: list[Sequence[str]] = [
        ("trace", "KV, tokens", "of all", "states of", "snapshots", "attention alone", *names)
    ]
    rows += [
        (
            row.trace,
            f"{row.num_tokens:,}",
            f"{row.kv_share:.0%}",
            row.model,
            f"{row.num_snapshots}",
            f"{row.attention:.1%}",
            *(_share(found, row.attention) for found in row.found.values()),
        )
        for row in record.rows
    ]
    return table(rows)


def _share(found: float, attention: float) -> str:
    return f"{found / attention:.3f}" if attention else "-"
