"""Runs the lines of one batch that have no answer yet, each until it has one."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from quire.server.apis.batches.answer_log import AnswerLog
from quire.server.apis.batches.line_runner import OK, LineAnswer, LineRunner
from quire.server.apis.batches.line_slots import LineSlot, LineSlots
from quire.server.apis.batches.lines import (
    AnswerLine,
    AnswerResponse,
    FaultyLine,
    LineLimits,
    LinePlace,
    parse_line,
    read_place,
)
from quire.server.generation.service import Service
from quire.server.tenancy.tenants import Tenant

MAX_RETRY_S = 2.0
"""A line that the server had no room for is asked again after so many seconds at most."""


class LineEnd(StrEnum):
    """The ways in which one run of a line ends."""

    COMPLETED = "completed"
    FAILED = "failed"
    PUT_BACK = "put_back"


class BatchStopped(Exception):
    """The server takes no more lines; the text says why. The batch can be gone on with."""


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of a batch: its lines, and where answers go: one that is an error goes to `errors`,
    which may be the same as `answers`."""

    lines: Path
    answers: AnswerLog
    errors: AnswerLog


class BatchRun:
    """Runs a batch for `tenant`. `on_end` is told how each run of a line ended, once that is on the
    disk."""

    def __init__(
        self,
        files: BatchFiles,
        limits: LineLimits,
        tenant: Tenant,
        *,
        service: Service,
        on_end: Callable[[LineEnd], None],
    ) -> None:
        self._files = files
        self._limits = limits
        self._tenant = tenant
        self._service = service
        self._on_end = on_end

    async def run(self, places: Sequence[LinePlace], runner: LineRunner, slots: LineSlots) -> None:
        """Return once every line is answered. Raises BatchStopped where the server ends, OSError
        where the files cannot be read or written. Cancelling leaves lines without an answer."""
        pending, running = deque(places), dict[asyncio.Task[None], LinePlace]()
        try:
            while pending or running:
                await self._reap(running, wait=not pending)
                if not pending:
                    continue
                slot = await slots.acquire()
                place = pending.popleft()
                running[self._begin(place, slot, runner, pending)] = place
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _reap(self, running: dict[asyncio.Task[None], LinePlace], *, wait: bool) -> None:
        if wait:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in running if task.done()]:
            del running[task]
            task.result()

    def _begin(
        self, place: LinePlace, slot: LineSlot, runner: LineRunner, pending: deque[LinePlace]
    ) -> asyncio.Task[None]:
        """Begin to answer a line. Its slot comes back also where the task is cancelled before it
        has run at all."""
        task = asyncio.create_task(self._answer(place, slot, runner, pending))
        task.add_done_callback(lambda _: slot.release())
        return task

    async def _answer(
        self, place: LinePlace, slot: LineSlot, runner: LineRunner, pending: deque[LinePlace]
    ) -> None:
        """Answer one line, or put it back among those that are pending."""
        asking = asyncio.ensure_future(self._ask(place, runner))
        slot.hold(asking)
        try:
            answer = await asking
        except asyncio.CancelledError:
            asking.cancel()
            if not slot.is_put_back:
                raise
            pending.appendleft(place)
            self._on_end(LineEnd.PUT_BACK)
            return
        if answer.retry_after_s is not None:
            await self._wait_for_room(answer)
            pending.append(place)
            return
        await self._write(place, answer)

    async def _ask(self, place: LinePlace, runner: LineRunner) -> LineAnswer:
        if self._service.draining:
            raise BatchStopped("the server is shutting down")
        raw = await asyncio.to_thread(read_place, self._files.lines, place)
        try:
            line = parse_line(raw, self._limits)
        except FaultyLine as fault:
            raise BatchStopped(f"{self._files.lines} was changed: {fault}") from None
        return await runner.run(line.url, bytes(line.body), self._tenant)

    async def _wait_for_room(self, answer: LineAnswer) -> None:
        service = self._service
        if service.is_down:
            raise BatchStopped(f"the engine is down: {service.default_model.down_reason}")
        await asyncio.sleep(min(answer.retry_after_s or 0, MAX_RETRY_S))

    async def _write(self, place: LinePlace, answer: LineAnswer) -> None:
        is_error = answer.status != OK
        log = self._files.errors if is_error else self._files.answers
        await log.append(
            place.custom_id, answer_line(place, answer, self._service.sources.random_bytes(12))
        )
        self._on_end(LineEnd.FAILED if is_error else LineEnd.COMPLETED)


def answer_line(place: LinePlace, answer: LineAnswer, random: bytes) -> bytes:
    """Return the line of an answer, with its end."""
    response = AnswerResponse(answer.status, answer.request_id, msgspec.Raw(answer.body))
    line = AnswerLine(f"batch_req_{random.hex()}", place.custom_id, response)
    return msgspec.json.encode(line) + b"\n"
