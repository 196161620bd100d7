"""Records in a folder, one file of JSON each: written whole or not at all, and on the disk before
they count."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

Record = TypeVar("Record", bound=msgspec.Struct)
SUFFIX, UNFINISHED = ".json", ".tmp"


class RecordError(Exception):
    """A record cannot be read; the text names its file."""


class RecordFolder(Generic[Record]):
    """The records of one type, by their ids."""

    def __init__(self, folder: Path, record_type: type[Record]) -> None:
        self._folder = folder
        self._decoder = msgspec.json.Decoder(record_type)
        folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> Iterator[tuple[str, Record]]:
        """Yield every record; what a crash left half written is removed. Raises RecordError or
        OSError."""
        for path in sorted(self._folder.iterdir()):
            if path.suffix == UNFINISHED:
                path.unlink()
            elif path.suffix == SUFFIX:
                try:
                    yield path.stem, self._decoder.decode(path.read_bytes())
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise RecordError(f"{path} cannot be read: {error}") from None

    def save(self, name: str, record: Record) -> None:
        """Write a record in place of the one before. Raises OSError."""
        unfinished = self._folder / f"{name}{UNFINISHED}"
        with unfinished.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._folder / f"{name}{SUFFIX}")
        sync_folder(self._folder)

    def delete(self, name: str) -> None:
        """Remove a record, if it is there. Raises OSError."""
        (self._folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
        sync_folder(self._folder)


def sync_folder(folder: Path) -> None:
    """Bring what was made, renamed and removed in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
