"""OpenTelemetry spans of finished requests, made from their timelines after the fact.

    chat MODEL                      the request, from its arrival to the end of the answer
      received, queued, prefill,    the parts of each choice; what happened in a part, as cache hits
      preempted, decode, delivered  and swaps, are events of its span

A thread makes and sends them. The event loop only puts a record into a bounded queue; where that is
full, or the collector does not take it, the request is counted as dropped. Attributes are those of
OpenTelemetry's semantic conventions for generative AI.
"""

import logging
from contextlib import suppress
from enum import StrEnum
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING

from quire.server.observability.request_record import RequestRecord

if TYPE_CHECKING:
    from quire.server.observability.span_export import SpanExport

logger = logging.getLogger(__name__)

MAX_QUEUED = 1024
MAX_BATCH = 64
MAX_CLOSE_S = 2.0


class SpanDropReason(StrEnum):
    """The reasons why the spans of a request were not sent."""

    QUEUE_FULL = "queue_full"
    NOT_TAKEN = "not_taken"


class RequestSpans:
    """Sends the spans of requests to a collector. The time on the clock plus `epoch_s` is in
    seconds since 1970. `dropped` counts requests by why they were not sent.

    Nothing of OpenTelemetry is imported before the first record, and then in the thread.
    """

    def __init__(self, endpoint: str, epoch_s: float, dropped: dict[SpanDropReason, int]) -> None:
        self._endpoint = endpoint
        self._epoch_s = epoch_s
        self._dropped = dropped  # each count is written by one thread alone
        self._queue: Queue[RequestRecord | None] = Queue(MAX_QUEUED)
        self._thread = Thread(target=self._run, name="request spans", daemon=True)
        self._is_started = False
        self._is_cut_off = Event()
        self._export: SpanExport | None = None

    def record(self, record: RequestRecord) -> None:
        """Queue a request for its spans, if its trace is sampled."""
        if not record.trace.is_sampled:
            return
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        try:
            self._queue.put_nowait(record)
        except Full:
            self._dropped[SpanDropReason.QUEUE_FULL] += 1

    def close(self) -> None:
        """Send what is queued, for about MAX_CLOSE_S; what is left then is not tried again."""
        if not self._is_started:
            return
        with suppress(Full):
            self._queue.put(None, timeout=MAX_CLOSE_S)
        self._thread.join(MAX_CLOSE_S)
        self._is_cut_off.set()
        if self._thread.is_alive() and self._export is not None:
            self._export.close()

    def _run(self) -> None:
        from quire.server.observability.span_export import SpanExport  # the extra `otel` has it

        export = self._export = SpanExport(self._endpoint, self._epoch_s)
        while not self._is_cut_off.is_set():
            batch = self._batch()
            self._send(export, [record for record in batch if record is not None])
            if None in batch:
                export.close()
                return

    def _send(self, export: "SpanExport", records: list[RequestRecord]) -> None:
        try:
            is_taken = not records or export.send(records)
        except Exception:  # what a request is traced by must never end the tracing of all
            logger.exception("spans of %d requests were not sent", len(records))
            is_taken = False
        if not is_taken:
            self._dropped[SpanDropReason.NOT_TAKEN] += len(records)

    def _batch(self) -> list[RequestRecord | None]:
        """Return what is queued, at least one."""
        batch = [self._queue.get()]
        while batch[-1] is not None and len(batch) < MAX_BATCH:
            try:
                batch.append(self._queue.get_nowait())
            except Empty:
                break
        return batch
