"""The turn of one batch of a server: it is checked, its lines run, and its files are shown.

    validating -> in_progress -> finalizing -> completed
         |             +-- its time is over --> expired
         |             +-- cancelling --------> cancelled
         +-- failed, where its file is no batch

Every state is on the disk before the next begins, so that a turn that was broken off by the end of
the server is taken again from where it was.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quire.server.apis.batches.answer_log import AnswerLog, open_answers
from quire.server.apis.batches.batch_run import BatchFiles, BatchRun, LineEnd
from quire.server.apis.batches.line_runner import LineRunner
from quire.server.apis.batches.line_slots import LineSlots
from quire.server.apis.batches.lines import (
    AnswerError,
    AnswerLine,
    BatchIndex,
    LineLimits,
    LinePlace,
    read_index,
)
from quire.server.apis.batches.protocol import (
    BatchFault,
    BatchFaults,
    BatchObject,
    FileObject,
    RequestCounts,
)
from quire.server.apis.batches.store import OUTPUT, BatchStore, StoredBatch, output_ids
from quire.server.generation.service import Service

logger = logging.getLogger(__name__)

NO_KEY = BatchFault("key_not_found", "The API key of the batch is no longer one of this server.")
NO_FILE = BatchFault("file_not_found", "The input file of the batch is gone.")
ENDS = {"in_progress": "expired", "finalizing": "completed", "cancelling": "cancelled"}
"""The end of a batch by its status when nothing of it runs any more."""
EXPIRED = AnswerError("batch_expired", "The batch expired before this line was answered.")


class BatchTurn:
    """Takes the turn of a batch."""

    def __init__(self, batch_id: str, store: BatchStore, service: Service) -> None:
        self._id = batch_id
        self._store = store
        self._service = service
        self._answering: asyncio.Task[None] | None = None

    @property
    def _stored(self) -> StoredBatch:
        return self._store.batches[self._id]

    @property
    def _batch(self) -> BatchObject:
        return self._stored.batch

    async def run(self, runner: LineRunner, slots: LineSlots) -> None:
        """Return once the batch is finished. Raises BatchStopped where the server ends, OSError or
        AnswerLogError where its files cannot be read or written."""
        limits = LineLimits(self._service.config.max_body_bytes, (self._batch.endpoint,))
        lines = self._store.content(self._batch.input_file_id)
        tenant = self._service.tenants.named(self._stored.owner)
        if tenant is None or not lines.exists():
            await self._fail([NO_KEY if tenant is None else NO_FILE])
            return
        index = await asyncio.to_thread(read_index, lines, limits)
        if index.faults:
            await self._fail(index.faults)
            return
        files = await self._open(lines)
        try:
            counts = RequestCounts(
                len(index.places), len(files.answers.custom_ids), len(files.errors.custom_ids)
            )
            if self._batch.status == "validating":
                await self._save(status="in_progress", in_progress_at=self._now())
            self._count(counts)
            run = BatchRun(files, limits, tenant, service=self._service, on_end=self._on_end)
            await self._answer(run, _unanswered(index, files), runner, slots)
            left = _unanswered(index, files)
            if left and self._batch.status == "in_progress":
                await self._expire(left, files.errors)
            elif self._batch.status == "in_progress":
                await self._save(status="finalizing", finalizing_at=self._now())
        finally:
            await files.answers.close()
            await files.errors.close()
        await self._finish(files)

    async def _open(self, lines: Path) -> BatchFiles:
        answers, errors = map(self._store.content, output_ids(self._id))
        opened = await asyncio.to_thread(open_answers, answers)
        try:
            return BatchFiles(lines, opened, await asyncio.to_thread(open_answers, errors))
        except BaseException:
            await opened.close()
            raise

    async def _answer(
        self, run: BatchRun, places: list[LinePlace], runner: LineRunner, slots: LineSlots
    ) -> None:
        """Answer the lines until all are, the time is over or the batch is cancelled."""
        if self._batch.status != "in_progress":
            return
        self._answering = asyncio.create_task(run.run(places, runner, slots))
        try:
            await asyncio.wait({self._answering}, timeout=max(self._left_s(), 0))
        finally:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        if not self._answering.cancelled():
            self._answering.result()

    def cancel(self) -> None:
        """End what runs; the batch is to be cancelling by then."""
        if self._answering is not None:
            self._answering.cancel()

    def _on_end(self, end: LineEnd) -> None:
        self._service.metrics.batches.num_lines[end] += 1
        counts = self._batch.request_counts
        if end is LineEnd.COMPLETED:
            self._count(msgspec.structs.replace(counts, completed=counts.completed + 1))
        elif end is LineEnd.FAILED:
            self._count(msgspec.structs.replace(counts, failed=counts.failed + 1))

    def _count(self, counts: RequestCounts) -> None:
        """Note the counts, in memory alone: after a restart the files tell them."""
        self._store.batches[self._id] = self._stored.changed(request_counts=counts)

    async def _expire(self, places: list[LinePlace], errors: AnswerLog) -> None:
        """Write that the lines were not answered in time."""
        for place in places:
            line_id = f"batch_req_{self._service.sources.random_bytes(12).hex()}"
            line = AnswerLine(line_id, place.custom_id, None, EXPIRED)
            await errors.append(place.custom_id, msgspec.json.encode(line) + b"\n")

    async def _fail(self, faults: Sequence[BatchFault]) -> None:
        logger.info("batch %s has failed: %s", self._id, faults[0].message)
        errors = BatchFaults(tuple(faults))
        await self._save(status="failed", failed_at=self._now(), errors=errors)

    async def _finish(self, files: BatchFiles) -> None:
        """Show the files that have something in them; then the batch is finished."""
        shown = [await self._show(each) for each in (files.answers, files.errors)]
        end = ENDS[self._batch.status]
        await self._save(
            **{"status": end, f"{end}_at": self._now()},
            output_file_id=shown[0],
            error_file_id=shown[1],
        )
        counts = self._batch.request_counts
        logger.info(
            "batch %s is %s: %d of %d lines completed, %d failed",
            *(self._id, end, counts.completed, counts.total, counts.failed),
        )

    async def _show(self, log: AnswerLog) -> str | None:
        file_id = log.path.stem
        if not log.num_bytes:
            await asyncio.to_thread(log.path.unlink)
            return None
        now = self._now()
        file = FileObject(
            id=file_id,
            bytes=log.num_bytes,
            created_at=now,
            expires_at=now + self._stored.output_kept_s,
            filename=f"{file_id}.jsonl",
            purpose=OUTPUT,
        )
        await self._store.keep_output(self._stored.owner, file)
        return file_id

    async def _save(self, **changes: object) -> None:
        await self._store.save_batch(self._stored.changed(**changes))

    def _now(self) -> int:
        return int(self._store.now())

    def _left_s(self) -> float:
        return self._batch.expires_at - self._store.now()


def _unanswered(index: BatchIndex, files: BatchFiles) -> list[LinePlace]:
    answered = files.answers.custom_ids | files.errors.custom_ids
    return [place for place in index.places if place.custom_id not in answered]
