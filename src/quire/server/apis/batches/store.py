"""The files and batches of all API keys, in one directory that one server has at a time:

    lock                 held while a server runs
    files/ID.jsonl       the content of a file, or the answers of a batch that still runs
    files/ID.json        its record; what has none is not shown
    batches/ID.json      the record of a batch

A record belongs to the tenant that made it; to all others it does not exist.
"""

import asyncio
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from quire.server.apis.batches.protocol import BatchObject, FileObject
from quire.server.apis.batches.records import RecordError, RecordFolder, sync_folder
from quire.server.errors import NOT_FOUND, TOO_LARGE, RequestError

UNFINISHED = frozenset(("validating", "in_progress", "finalizing", "cancelling"))
"""A batch with such a status still has something to be done."""
MAX_SHOWN_CHARS = 128
CONTENT = ".jsonl"
INPUT, OUTPUT = "batch", "batch_output"
"""Purposes of files."""


class StoreError(Exception):
    """The directory cannot be used; the text names it and says why."""


class StoreInUse(StoreError):
    """Another server has the directory."""


class BatchStoreLimits(NamedTuple):
    """Limits of what one key may keep: bytes and number of its files, its unfinished batches, and
    seconds until a file or a finished batch expires."""

    max_bytes: int
    max_files: int = 1000
    max_batches: int = 100
    kept_s: int = 30 * 24 * 3600


class StoredFile(msgspec.Struct, frozen=True):
    owner: str
    file: FileObject


class StoredBatch(msgspec.Struct, frozen=True):
    """`output_kept_s` says how long its files are kept."""

    owner: str
    batch: BatchObject
    output_kept_s: int

    def changed(self, **changes: object) -> "StoredBatch":
        """Return the record with other values in fields of its batch."""
        batch = msgspec.structs.replace(self.batch, **changes)
        return msgspec.structs.replace(self, batch=batch)


class BatchStore:
    """The records, in memory and on the disk. It is used in the event loop; what takes long runs in
    threads. `now` gives seconds since 1970."""

    def __init__(self, folder: Path, limits: BatchStoreLimits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, StoredBatch] = {}
        self._folder = folder
        self._lock: int | None = None
        self._saving = asyncio.Lock()
        self._file_records = RecordFolder(folder / "files", StoredFile)
        self._batch_records = RecordFolder(folder / "batches", StoredBatch)

    def content(self, file_id: str) -> Path:
        return self._folder / "files" / f"{file_id}{CONTENT}"

    def open(self) -> None:
        """Take the directory, read what is in it, and remove what a crash left unfinished. Raises
        StoreError."""
        try:
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.files |= self._file_records.load()
            self.batches |= self._batch_records.load()
            self._remove_strays()
        except BlockingIOError:
            self.close()
            raise StoreInUse(f"--batch-dir: {self._folder} is in use by another server") from None
        except (OSError, RecordError) as error:
            raise StoreError(f"--batch-dir: {error}") from None

    def _remove_strays(self) -> None:
        """Remove contents without a record, but for the answers of unfinished batches."""
        running = {id for each in self.unfinished() for id in output_ids(each.batch.id)}
        for path in self._folder.glob(f"files/*{CONTENT}*"):
            if path.name.partition(".")[0] not in self.files.keys() | running:
                path.unlink()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def unfinished(self) -> Iterator[StoredBatch]:
        """Yield the batches that are still to be done, the oldest first."""
        found = [each for each in self.batches.values() if each.batch.status in UNFINISHED]
        yield from sorted(found, key=lambda each: (each.batch.created_at, each.batch.id))

    def find_file(self, owner: str, file_id: str) -> FileObject:
        """Return a file of this owner. Raises RequestError."""
        found = self.files.get(file_id)
        if found is None or found.owner != owner:
            raise _not_found("file", file_id)
        return found.file

    def find_batch(self, owner: str, batch_id: str) -> StoredBatch:
        """Return a batch of this owner. Raises RequestError."""
        found = self.batches.get(batch_id)
        if found is None or found.owner != owner:
            raise _not_found("batch", batch_id)
        return found

    def num_bytes_of(self, owner: str) -> int:
        return sum(each.file.bytes for each in self.files.values() if each.owner == owner)

    def check_room(self, owner: str, num_bytes: int) -> None:
        """Raise RequestError where the owner may not keep another file of so many bytes."""
        limits = self.limits
        num_files = sum(each.owner == owner for each in self.files.values())
        if num_files >= limits.max_files:
            raise RequestError(
                f"This key keeps {num_files} files, and may keep {limits.max_files}: delete some.",
                code="too_many_files",
                status=TOO_LARGE,
            )
        used = self.num_bytes_of(owner)
        if used + num_bytes > limits.max_bytes:
            raise RequestError(
                f"The files of this key have {used} bytes, and may have {limits.max_bytes} "
                f"(--batch-quota); this one has {num_bytes} or more: delete some.",
                code="storage_quota_exceeded",
                status=TOO_LARGE,
            )

    async def add_file(self, owner: str, file: FileObject, source: BinaryIO) -> None:
        """Keep the content of `source`. Raises RequestError where there is no room, OSError."""
        self.check_room(owner, file.bytes)
        stored = StoredFile(owner, file)
        self.files[file.id] = stored  # it takes its room at once
        try:
            await asyncio.to_thread(self._write, stored, source)
        except BaseException:
            del self.files[file.id]
            raise

    def _write(self, stored: StoredFile, source: BinaryIO) -> None:
        with self.content(stored.file.id).open("wb") as kept:
            shutil.copyfileobj(source, kept, 1 << 20)
            kept.flush()
            os.fsync(kept.fileno())
        self._file_records.save(stored.file.id, stored)

    async def keep_output(self, owner: str, file: FileObject) -> None:
        """Show a file whose content is there already. Raises OSError."""
        await asyncio.to_thread(self._file_records.save, file.id, StoredFile(owner, file))
        self.files[file.id] = StoredFile(owner, file)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file. Raises RequestError for the input of an unfinished batch, OSError."""
        if self._is_in_use(file_id):
            raise RequestError(
                "The file is the input of a batch that is not finished: cancel that first.",
                code="file_in_use",
            )
        self.files.pop(file_id, None)
        await asyncio.to_thread(self._forget_file, file_id)

    def _forget_file(self, file_id: str) -> None:
        self._file_records.delete(file_id)
        self.content(file_id).unlink(missing_ok=True)
        sync_folder(self._folder / "files")

    def _is_in_use(self, file_id: str) -> bool:
        return any(each.batch.input_file_id == file_id for each in self.unfinished())

    def check_batches(self, owner: str) -> None:
        """Raise RequestError where the owner may not begin another batch."""
        num = sum(each.owner == owner for each in self.unfinished())
        if num >= self.limits.max_batches:
            raise RequestError(
                f"This key has {num} unfinished batches, and may have {self.limits.max_batches}.",
                code="too_many_batches",
                status=TOO_LARGE,
            )

    async def save_batch(self, stored: StoredBatch) -> None:
        """Keep a batch as it is now. Raises OSError."""
        batch_id = stored.batch.id
        self.batches[batch_id] = stored
        async with self._saving:
            await asyncio.to_thread(self._batch_records.save, batch_id, self.batches[batch_id])

    async def expire(self) -> None:
        """Delete files whose time has come, and batches that finished long ago. Raises OSError."""
        now = self.now()
        for file_id, stored in tuple(self.files.items()):
            if stored.file.expires_at <= now and not self._is_in_use(file_id):
                await self.delete_file(file_id)
        for batch_id, each in tuple(self.batches.items()):
            is_old = each.batch.created_at + self.limits.kept_s <= now
            if is_old and each.batch.status not in UNFINISHED:
                del self.batches[batch_id]
                await asyncio.to_thread(self._batch_records.delete, batch_id)


def output_ids(batch_id: str) -> tuple[str, str]:
    """Return the ids of the files of a batch's answers and errors: the same after a restart."""
    tail = batch_id.removeprefix("batch_")
    return f"file-{tail}-output", f"file-{tail}-error"


def _not_found(what: str, name: str) -> RequestError:
    return RequestError(
        f"No {what} {name[:MAX_SHOWN_CHARS]!r} of yours is known.",
        code=f"{what}_not_found",
        status=NOT_FOUND,
    )


def open_store(folder: Path, limits: BatchStoreLimits, now: Callable[[], float]) -> BatchStore:
    """Open the directory, which is made if need be. Raises StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        store = BatchStore(folder, limits, now)
    except OSError as error:
        raise StoreError(f"--batch-dir: {error}") from None
    store.open()
    return store
