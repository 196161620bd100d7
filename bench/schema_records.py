"""Records of JSON schemas that were put to a server, and the tables made of the newest."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import median

import msgspec

from bench.machine import Machine
from bench.markdown import table
from bench.record_files import record_path

FOLDER = Path(__file__).parent / "records" / "schemas"
LEAST_SCHEMAS_OF_REASON = 3
_KEYWORD = re.compile(r"^'[^']*?([$\w-]+)' is a keyword that cannot be enforced")
_PATH = re.compile(r"^Invalid '.*?': (?=[a-z\d]|[A-Z][a-z]+ )")
_OTHER_SCHEMA = re.compile("Resource .* is not present|must be a reference into this schema")
_ADDRESS = re.compile(r"\S+://\S+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class Outcome(StrEnum):
    """The ends that a schema can come to."""

    REFUSED = "refused"
    VALID = "finished, valid"
    INVALID = "finished, not valid"
    UNCHECKED = "finished, not checked"
    CUT = "cut"
    FAILED = "failed"


FINISHED = (Outcome.VALID, Outcome.INVALID, Outcome.UNCHECKED)


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of one schema; `why` says more unless it is valid. `loosened` are the keywords of it
    that the server said it does not enforce."""

    outcome: Outcome
    num_tokens: int = 0
    why: str = ""
    loosened: tuple[str, ...] = ()


class SchemaRow(msgspec.Struct, frozen=True):
    """One schema: its name, the keywords in it, and an attempt for each way to sample."""

    name: str
    keywords: tuple[str, ...]
    attempts: tuple[Attempt, ...]


class SchemaRecord(msgspec.Struct, frozen=True):
    """All schemas of one source, put to one server in each of the ways to sample."""

    date: str
    commit: str
    command: str
    source: str
    machine: Machine
    max_tokens: int
    ways: tuple[str, ...]
    num_unreadable: int
    rows: tuple[SchemaRow, ...]

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the record, a schema a line; return its file."""
        path = record_path(folder, self.date)
        text = msgspec.json.encode(self).decode()
        path.write_text(text.replace('{"name":', '\n{"name":') + "\n", encoding="utf-8")
        return path


def load_newest(folder: Path = FOLDER) -> SchemaRecord:
    """Return the newest record. Raises ValueError where there is none."""
    return msgspec.json.decode(max(folder.glob("*.json")).read_bytes(), type=SchemaRecord)


def schema_tables(record: SchemaRecord) -> str:
    """Return the outcomes, why schemas were refused, and the outcomes by keyword."""
    parts = (_preface(record), _outcomes(record), _exceptions(record))
    return "\n\n".join((*parts, _refusals(record), _keywords(record)))


def _preface(record: SchemaRecord) -> str:
    return (
        f"{len(record.rows)} schemas of {record.source}; {record.num_unreadable} more of its files "
        f"hold no JSON. At most {record.max_tokens:,} tokens each. `{record.command}`, "
        f"{record.date}, at {record.commit[:7]}, on {record.machine.describe()}."
    )


def _column(record: SchemaRecord, way: int) -> list[Attempt]:
    return [row.attempts[way] for row in record.rows]


def _outcomes(record: SchemaRecord) -> str:
    cells = [["", *record.ways]]
    columns = [_column(record, way) for way in range(len(record.ways))]
    for outcome in Outcome:
        for is_loosened, kind in ((False, "enforced"), (True, "loosened")):
            counts = [
                sum(each.outcome is outcome and bool(each.loosened) is is_loosened for each in made)
                for made in columns
            ]
            if outcome is Outcome.REFUSED:
                kind = ""
            if any(counts) or not is_loosened:
                cells.append([f"{kind}, {outcome}" if kind else outcome, *map(str, counts)])
    cells.append(["**of the accepted, finished**", *map(_share_finished, columns)])
    cells.append(["median tokens of the finished", *map(_median_tokens, columns)])
    return table(cells)


def _share_finished(attempts: Iterable[Attempt]) -> str:
    accepted = [each for each in attempts if each.outcome is not Outcome.REFUSED]
    num_finished = sum(each.outcome in FINISHED for each in accepted)
    return f"**{num_finished / max(len(accepted), 1):.1%}**"


def _median_tokens(attempts: Iterable[Attempt]) -> str:
    lengths = [each.num_tokens for each in attempts if each.outcome in FINISHED]
    return f"{median(lengths):.0f}" if lengths else "-"


def _exceptions(record: SchemaRecord) -> str:
    """Return a line for each schema that is enforced and whose output ended neither valid nor cut,
    and for each that failed."""
    told = (Outcome.INVALID, Outcome.UNCHECKED, Outcome.FAILED)
    lines = {
        f"- {each.outcome}, `{row.name}`: {each.why}"
        for row in record.rows
        for each in row.attempts
        if each.outcome in told and (each.outcome is Outcome.FAILED or not each.loosened)
    }
    return "\n".join(sorted(lines)) or "Every finished output of the enforced is valid."


def reason(why: str) -> str:
    """Return a refusal without what is of one schema alone: paths, names, addresses, numbers."""
    if found := _KEYWORD.match(why):
        return f"the keyword `{found[1]}` cannot be enforced"
    plain = _PATH.sub("", why).rstrip(".")
    if _OTHER_SCHEMA.match(plain):
        return "a reference leads out of the schema"
    named = _ADDRESS.sub("", _QUOTED.sub("...", plain))
    return re.split(r"[,;(]|: *$|\. | while processing", re.sub(r"\d[\d,]*", "N", named))[0].strip()


def _refusals(record: SchemaRecord) -> str:
    refused = [each for each in _column(record, 0) if each.outcome is Outcome.REFUSED]
    counts = Counter(reason(each.why) for each in refused).most_common()
    shown = [(why, count) for why, count in counts if count >= LEAST_SCHEMAS_OF_REASON]
    num_others = len(refused) - sum(count for _, count in shown)
    others = [("others, of fewer than three schemas each", num_others)] if num_others else []
    rows = [[why.replace("|", "\\|"), str(count)] for why, count in shown + others]
    return table([["Refused since", "schemas"], *rows])


def _keywords(record: SchemaRecord) -> str:
    """Return a row for each keyword: in how many schemas it is, and what became of those. The
    last way to sample counts."""
    by_keyword: dict[str, list[Attempt]] = {}
    for row in record.rows:
        for keyword in row.keywords:
            by_keyword.setdefault(keyword, []).append(row.attempts[-1])
    cells = [["Keyword", "schemas", "accepted", "loosened", "finished", "valid"]]
    for keyword, attempts in sorted(by_keyword.items(), key=lambda item: (-len(item[1]), item[0])):
        cells.append([f"`{keyword}`", *map(str, _counts(keyword, attempts))])
    return table(cells)


def _counts(keyword: str, attempts: Sequence[Attempt]) -> tuple[int, int, int, int, int]:
    return (
        len(attempts),
        sum(each.outcome is not Outcome.REFUSED for each in attempts),
        sum(keyword in each.loosened for each in attempts),
        sum(each.outcome in FINISHED for each in attempts),
        sum(each.outcome is Outcome.VALID for each in attempts),
    )
