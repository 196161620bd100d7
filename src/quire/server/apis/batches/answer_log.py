"""The file that the answers of a batch go to: it only grows, and what is written is on the disk
before it counts.

A process that is killed leaves at most one torn line, the last; it is dropped when the file is
opened again, and its line of the batch is answered anew.
"""

import asyncio
import fcntl
import os
from pathlib import Path

from quire.server.apis.batches.lines import answered_id
from quire.server.apis.batches.records import sync_folder


class AnswerLogError(Exception):
    """The file cannot be gone on with; the text names it and says why."""


class AnswerLog:
    """An open file of answers. `custom_ids` are those of the lines that it has an answer to,
    `num_bytes` is how long the file is."""

    def __init__(self, path: Path, descriptor: int, custom_ids: set[str], num_bytes: int) -> None:
        self.path = path
        self.custom_ids = custom_ids
        self.num_bytes = num_bytes
        self._descriptor = descriptor
        self._unwritten: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, custom_id: str, line: bytes) -> None:
        """Write the answer to a line of the batch; return once it is on the disk. What comes
        meanwhile is written together. Raises OSError."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((line, written))
        self.custom_ids.add(custom_id)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        try:
            await written
        except OSError:
            self.custom_ids.discard(custom_id)
            raise

    async def _write_all(self) -> None:
        while self._unwritten:
            taken, self._unwritten = self._unwritten, []
            try:
                await asyncio.to_thread(self._write, b"".join(line for line, _ in taken))
                error = None
            except OSError as failed:
                error = failed
            for _, written in taken:
                if written.done():
                    continue
                if error is None:
                    written.set_result(None)
                else:
                    written.set_exception(error)
        self._writing = None

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.num_bytes)  # else a torn line would stay within
            raise
        self.num_bytes += len(data)

    async def close(self) -> None:
        """Close the file, once all is written; another process may open it then."""
        if self._writing is not None:
            await self._writing
        os.close(self._descriptor)


def open_answers(path: Path) -> AnswerLog:
    """Open the file, which need not exist, to go on with it. Raises AnswerLogError or OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnswerLogError(f"{path} is being written by another process") from None
        custom_ids, num_bytes = _recover(path, descriptor)
        sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return AnswerLog(path, descriptor, custom_ids, num_bytes)


def _recover(path: Path, descriptor: int) -> tuple[set[str], int]:
    """Cut off a torn end; return the ids of the answers before it, and their bytes."""
    custom_ids: set[str] = set()
    whole = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            custom_id = answered_id(raw) if raw.endswith(b"\n") else None
            if custom_id is None and file.peek(1):
                raise AnswerLogError(f"{path} line {number} is no answer of a batch")
            if custom_id is None:
                break
            if custom_id in custom_ids:
                raise AnswerLogError(f"{path} line {number} answers {custom_id!r} again")
            custom_ids.add(custom_id)
            whole += len(raw)
    if whole == 0 and os.fstat(descriptor).st_size:
        _check_torn(path)
    os.ftruncate(descriptor, whole)
    os.fsync(descriptor)
    return custom_ids, whole


def _check_torn(path: Path) -> None:
    """Raise AnswerLogError for a file whose only line does not begin as an answer does: it is not
    ours to cut."""
    with path.open("rb") as file:
        begin = file.read(len(ANSWER_BEGIN))
    if not ANSWER_BEGIN.startswith(begin):
        raise AnswerLogError(f"{path} is no file of answers: another name is wanted")


ANSWER_BEGIN = b'{"id":"batch_req_'
"""Every answer begins so."""
