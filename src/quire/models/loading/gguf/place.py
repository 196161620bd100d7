"""Tells GGUF files, and the folders that stand for them, by their names alone."""

import re
from pathlib import Path
from typing import NamedTuple

from quire.models.config import CheckpointError

WEIGHTS = "weights.gguf"
"""The link to a file in the folder that stands for it."""
SUFFIX = ".gguf"
MAX_PARTS = 99_999
"""More do not fit into names."""
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.I)


class PartName(NamedTuple):
    """The name of one file of several, `number` 1 the first of `num_parts`."""

    stem: str
    number: int
    num_parts: int

    def other(self, number: int) -> str:
        """Return the name of another part, as llama.cpp has it."""
        return f"{self.stem}-{number:05}-of-{self.num_parts:05}{SUFFIX}"

    def all(self) -> list[str]:
        """Return the names of all parts."""
        return [self.other(number) for number in range(1, self.num_parts + 1)]


def part_of(path: Path) -> PartName | None:
    """Return which part of a model a file is by its name; None for a whole model."""
    found = _PART.fullmatch(path.name)
    return found and PartName(found["stem"], int(found["number"]), int(found["count"]))


def is_gguf(path: Path) -> bool:
    """Return whether a path is that of a GGUF file, by its name."""
    return path.suffix.lower() == SUFFIX


def is_gguf_folder(folder: Path) -> bool:
    """Return whether a folder stands for a GGUF file."""
    return (folder / WEIGHTS).exists()


def only_file_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that holds one and no model in safetensors, the first of its
    parts if it has several, else None. Raises CheckpointError where there are several models."""
    if any(folder.glob("*.safetensors")):
        return None
    if is_gguf_folder(folder):
        return folder / WEIGHTS
    models: dict[tuple[str, int], list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if is_gguf(path):
            part = part_of(path)
            models.setdefault((path.name, 1) if part is None else part[::2], []).append(path)
    files = [parts[0] for parts in models.values()]
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise CheckpointError(f"{folder} holds several GGUF files: give the path of one of {names}")
    return files[0] if files else None
