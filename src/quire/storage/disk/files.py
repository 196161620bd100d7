"""The files of a folder that models, servers and replicas share: their names, and a scan of them.

    DIR/<fingerprint>/a/abcdef....kv            an extent: some blocks of a chain
    DIR/<fingerprint>/a/.abcdef....tmp          one that is being written, or that a kill left
    DIR/.trash-<random>/                        what a reset made unfindable, until it is deleted

Nothing that is named otherwise is counted, read or deleted.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

FOLDER_MODE = 0o700
MAX_TEMPORARY_AGE_S = 60.0
"""A file that is older and still has the name of one being written was left by a kill: writing one
takes milliseconds."""
MODEL_FOLDER = re.compile(r"[0-9a-f]{32}")
EXTENT_FOLDER = re.compile(r"[0-9a-f]")
EXTENT = re.compile(r"[0-9a-f]{4,256}\.kv")
TEMPORARY = re.compile(r"\.[0-9a-f]{4,256}\.[0-9a-f]{16}\.tmp")
TRASH = re.compile(r"\.trash-[0-9a-f]{16}")


class ExtentFile(NamedTuple):
    """The file of an extent: its path below the folder, its bytes, and when it was last of use, in
    seconds since the epoch."""

    name: str
    num_bytes: int
    used_s: float


def model_folder(fingerprint: bytes) -> str:
    """Return the name of a model's folder."""
    return fingerprint[:16].hex()


def extent_name(folder: str, digest: bytes) -> str:
    """Return the path of the extent whose keys have this digest, below the folder of all."""
    text = digest.hex()
    return f"{folder}/{text[:1]}/{text}.kv"


def temporary_name(name: str) -> str:
    """Return a unique temporary path in the same folder."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/.{last.removesuffix('.kv')}.{secrets.token_hex(8)}.tmp"


def open_folder(root: Path) -> None:
    """Make the folder, and write to it once. Raises OSError where it cannot be used."""
    root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    probe = root / f".probe-{secrets.token_hex(8)}"
    try:
        probe.write_bytes(b"quire")
        if probe.read_bytes() != b"quire":
            raise OSError("what was written is not read again")
    finally:
        with suppress(OSError):
            probe.unlink()


def make_folders(root: Path, name: str) -> None:
    """Make the folders of a file. Raises OSError, also if `root` is gone."""
    for folder in reversed(Path(name).parents[:-1]):
        with suppress(FileExistsError):
            os.mkdir(root / folder, FOLDER_MODE)


def move_to_trash(root: Path, folder: str) -> None:
    """Make all blocks of a model unfindable, for everyone. Raises OSError where it cannot."""
    with suppress(FileNotFoundError):
        os.rename(root / folder, root / f".trash-{secrets.token_hex(8)}")


def scan(root: Path) -> Iterator[ExtentFile]:
    """Yield all extents of all models, and delete leftovers of kills and resets. Unreadable files
    are skipped."""
    for model in _entries(root):
        if TRASH.fullmatch(model.name):
            shutil.rmtree(model.path, ignore_errors=True)
        if not MODEL_FOLDER.fullmatch(model.name):
            continue
        for folder in _entries(model.path):
            if EXTENT_FOLDER.fullmatch(folder.name):
                yield from _scan_extents(folder.path, f"{model.name}/{folder.name}")


def _scan_extents(path: str, below: str) -> Iterator[ExtentFile]:
    for file in _entries(path):
        is_extent = EXTENT.fullmatch(file.name) is not None
        if not is_extent and not TEMPORARY.fullmatch(file.name):
            continue
        try:
            status = file.stat(follow_symlinks=False)
            if not S_ISREG(status.st_mode):
                continue
            if is_extent:
                yield ExtentFile(f"{below}/{file.name}", status.st_size, status.st_mtime)
            elif time.time() - status.st_mtime > MAX_TEMPORARY_AGE_S:
                os.unlink(file.path)
        except OSError:
            continue  # another has deleted it


def _entries(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []
