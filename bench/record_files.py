"""Files of records: each has the time of its record as its name."""

import re
from pathlib import Path

import msgspec


def record_path(folder: Path, date: str) -> Path:
    """Return the file of a record of that date, in a folder that is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / (re.sub(r"[ :]", "-", date.removesuffix(" UTC")) + ".json")


def save_record(record: msgspec.Struct, folder: Path, date: str) -> Path:
    """Write a record; return its file."""
    path = record_path(folder, date)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    return path
