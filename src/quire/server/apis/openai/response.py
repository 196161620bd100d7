"""A generation as an HTTP response: one JSON body, or server-sent events.

It ends in one of three ways, whichever comes first: the output ends or fails; the client goes
away; the server must stop. What still runs in the engine then is aborted at once.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.errors import (
    SERVER_ERROR,
    DeadlineExceeded,
    RequestError,
    ShuttingDown,
)
from quire.server.generation.answer_writer import AnswerWriter
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.output_delta import GatheredOutput, OutputDelta
from quire.server.generation.service import Service
from quire.server.observability.metrics import FinishReason

logger = logging.getLogger(__name__)

MAX_INLINE_PARTS = 500
"""More parts (deltas, log probability entries, token ids of a prompt) are joined and encoded in a
thread: the event loop serves others meanwhile."""
MAX_INLINE_LOGPROBS = 20_000
"""Once a stream had more, what closes a part of it, which may hold them all again, is made in a
thread."""
KEEP_ALIVE = b": keep-alive\n\n"
PAUSED = b": the engine restarts, the answer goes on\n\n"
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


async def _encoded(num_parts: int, make: Callable[[], bytes]) -> bytes:
    """Return what `make` does, called in a thread where the parts are many."""
    return make() if num_parts <= MAX_INLINE_PARTS else await asyncio.to_thread(make)


async def whole_answer(generation: GenerationStream, writer: AnswerWriter) -> bytes:
    """Return the answer of a generation that has started, once it has ended. Raises RequestError if
    it fails."""
    outputs = [GatheredOutput() for _ in generation.context.requests]
    async with aclosing(generation.deltas()) as deltas:
        async for choice, delta in deltas:
            outputs[choice].add(delta)
            if len(delta.logprobs) > MAX_INLINE_PARTS:
                await asyncio.sleep(0)
    best = [outputs[index] for index in generation.best()]
    num_parts = sum(each.num_parts for each in best)
    return await _encoded(num_parts, lambda: writer.whole([each.joined() for each in best]))


class GenerationResponse(Response):
    """Runs a generation and sends its answer until the client goes away; `writer` gives it the form
    of its protocol."""

    def __init__(
        self,
        generation: GenerationStream,
        writer: AnswerWriter,
        service: Service,
    ) -> None:
        super().__init__()
        self._generation = generation
        self._context = generation.context
        self._writer = writer
        self._cut_off = service.cut_off
        self._keep_alive_s = service.config.sse_keep_alive_interval_s or None
        self._streaming = False
        self._telling: asyncio.Task[None] | None = None
        self._num_sent = 0
        self._num_logprobs = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        produced = self._stream(send) if self._context.delivery.stream else self._answer(send)
        produce = asyncio.create_task(produced)
        watch = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait({produce, watch, self._cut_off}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish(produce, send)
        finally:
            self._generation.abort(FinishReason.ABORT)
            self._generation.close()
            tasks = (produce, watch, *([] if self._telling is None else [self._telling]))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, produce: asyncio.Task[None], send: Send) -> None:
        if produce.done():
            error = produce.exception()
            if error is not None:
                is_late = isinstance(error, DeadlineExceeded)
                self._generation.abort(FinishReason.ABORT if is_late else FinishReason.ERROR)
                await self._fail(error, send)
            return
        self._generation.abort(FinishReason.ABORT)
        produce.cancel()
        if self._cut_off.done():
            await self._fail(ShuttingDown("The server is shutting down; the output ends."), send)

    async def _fail(self, error: BaseException, send: Send) -> None:
        """Send an error event. Raises the error if nothing was sent yet: it is the answer then."""
        if not isinstance(error, RequestError):
            logger.error("request %s failed", self._context.id, exc_info=error)
            error = RequestError(
                "Internal error; the server's log has it.", code="internal", status=SERVER_ERROR
            )
        if not self._streaming:
            raise error
        figures = self._context.arrival.figures
        if figures is not None:
            figures.fail(error.code)
        await self._send(send, self._writer.failure(error), more=False)

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Return once the client is gone. A stream that is silent for long gets comment lines."""
        while True:
            num_sent = self._num_sent
            try:
                message = await asyncio.wait_for(receive(), self._keep_alive_s)
            except TimeoutError:
                if self._streaming and num_sent == self._num_sent:
                    await self._send(send, KEEP_ALIVE)
                continue
            if message["type"] == "http.disconnect":
                return

    async def _answer(self, send: Send) -> None:
        await self._generation.start()
        body = await whole_answer(self._generation, self._writer)
        await self._begin(
            send,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        )
        await self._send(send, body, more=False)

    async def _stream(self, send: Send) -> None:
        await self._generation.start()
        await self._begin(send, *STREAM_HEADERS)
        self._streaming = True
        self._generation.on_pause = lambda: self._tell_pause(send)
        wants_all = self._context.text_options.token_ids
        num_ids = self._context.num_prompt_tokens * self._context.num_choices if wants_all else 0
        await self._send(send, await _encoded(num_ids, self._writer.opening))
        async with aclosing(self._generation.deltas()) as deltas:
            async for choice, delta in deltas:
                chunk = await self._chunk(choice, delta)
                if chunk:
                    await self._send(send, chunk)
        closing = await _encoded(self._num_heavy_parts, self._writer.closing)
        await self._send(send, closing, more=False)

    def _tell_pause(self, send: Send) -> None:
        """Send one comment line, however many outputs the answer has."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._send(send, PAUSED))

    async def _chunk(self, choice: int, delta: OutputDelta) -> bytes:
        self._num_logprobs += len(delta.logprobs)
        num_parts = max(len(delta.logprobs), self._num_heavy_parts)
        return await _encoded(num_parts, lambda: self._writer.chunk(choice, delta))

    @property
    def _num_heavy_parts(self) -> int:
        return self._num_logprobs if self._num_logprobs > MAX_INLINE_LOGPROBS else 0

    async def _begin(self, send: Send, *headers: tuple[bytes, bytes]) -> None:
        reports = self._context.report_headers.items()
        extra = ((name.encode(), text.encode()) for name, text in reports)
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *extra]})

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        self._num_sent += 1
        await send({"type": "http.response.body", "body": body, "more_body": more})
