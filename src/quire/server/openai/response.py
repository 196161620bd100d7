"""A generation as an HTTP response: one JSON body, or server-sent events.

It ends in one of three ways, whichever comes first: the output ends or fails; the client goes
away; the server must stop. What still runs in the engine then is aborted at once.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.errors import (
    SERVER_ERROR,
    DeadlineExceeded,
    RequestError,
    ShuttingDown,
    error_body,
)
from quire.server.http.sliced_json import encode_sliced
from quire.server.observability.metrics import Finished
from quire.server.openai.protocol.wire import QuireAccount, Usage
from quire.server.openai.shape import Shape
from quire.server.requests.generation import Generation
from quire.server.requests.job import GatheredOutput, Piece
from quire.server.service import Service

logger = logging.getLogger(__name__)

MANY_PARTS = 500
"""Pieces, tokens with log probabilities or token ids of a prompt that are joined and encoded on the
event loop: in a thread others are served meanwhile."""
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def _made(num_parts: int, make: Callable[[], bytes]) -> bytes:
    return make() if num_parts <= MANY_PARTS else await asyncio.to_thread(make)


class GenerationResponse(Response):
    """Runs a generation while it watches for the client's going."""

    def __init__(self, generation: Generation, shape: Shape, service: Service) -> None:
        super().__init__()
        self._generation = generation
        self._job = generation.job
        self._shape = shape
        self._cut_off = service.cut_off
        self._keep_alive_s = service.config.sse_keep_alive_interval_s or None
        self._streaming = False
        self._num_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        produced = self._stream(send) if self._job.delivery.stream else self._answer(send)
        produce = asyncio.create_task(produced)
        watch = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait({produce, watch, self._cut_off}, return_when=asyncio.FIRST_COMPLETED)
            await self._settle(produce, send)
        finally:
            self._generation.abort(Finished.ABORT)
            self._generation.close()
            produce.cancel()
            watch.cancel()
            await asyncio.gather(produce, watch, return_exceptions=True)

    async def _settle(self, produce: asyncio.Task[None], send: Send) -> None:
        if produce.done():
            error = produce.exception()
            if error is not None:
                is_late = isinstance(error, DeadlineExceeded)
                self._generation.abort(Finished.ABORT if is_late else Finished.ERROR)
                await self._fail(error, send)
            return
        self._generation.abort(Finished.ABORT)
        produce.cancel()
        if self._cut_off.done():
            await self._fail(ShuttingDown("The server is shutting down; the output ends."), send)

    async def _fail(self, error: BaseException, send: Send) -> None:
        """An error event, or, if nothing was sent yet, the error to those who answer with it."""
        if not isinstance(error, RequestError):
            logger.error("request %s failed", self._job.id, exc_info=error)
            error = RequestError(
                "Internal error; the server's log has it.", code="internal", status=SERVER_ERROR
            )
        if not self._streaming:
            raise error
        await self._send(send, event(error_body(error)) + DONE, more=False)

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Until the client is gone. A stream that is silent for long gets comment lines."""
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
        generation = self._generation
        await generation.start()
        outputs = [GatheredOutput() for _ in self._job.requests]
        async with aclosing(generation.pieces()) as pieces:
            async for choice, piece in pieces:
                outputs[choice].add(piece)
                if len(piece.logged) > MANY_PARTS:
                    await asyncio.sleep(0)
        best = [outputs[index] for index in generation.best()]
        usage, account = generation.usage(), generation.account()
        num_parts = sum(each.num_parts for each in best)
        body = await _made(num_parts, lambda: self._whole(best, usage, account))
        await self._begin(
            send,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        )
        await self._send(send, body, more=False)

    def _whole(self, best: list[GatheredOutput], usage: Usage, account: QuireAccount) -> bytes:
        """Choice by choice: threads take turns between calls of the encoder, never within one."""
        whole = self._shape.whole([each.joined() for each in best], usage, account)
        choices = tuple(msgspec.Raw(encode_sliced(each, "logprobs")) for each in whole.choices)
        return msgspec.json.encode(msgspec.structs.replace(whole, choices=choices))

    async def _stream(self, send: Send) -> None:
        await self._generation.start()
        await self._begin(send, *STREAM_HEADERS)
        self._streaming = True
        wants_all = self._job.text.token_ids
        num_ids = self._job.num_prompt_tokens * self._job.num_choices if wants_all else 0
        await self._send(send, await _made(num_ids, self._openings))
        async with aclosing(self._generation.pieces()) as pieces:
            async for choice, piece in pieces:
                if piece.text or piece.ending or piece.logged or (wants_all and piece.token_ids):
                    await self._send(send, await self._chunk(choice, piece))
        await self._send(send, self._closing() + DONE, more=False)

    async def _chunk(self, choice: int, piece: Piece) -> bytes:
        usage = self._usage_beside()
        return await _made(len(piece.logged), lambda: self._event(choice, piece, usage))

    def _event(self, choice: int, piece: Piece, usage: Usage | None | UnsetType) -> bytes:
        chunk = self._shape.chunk(choice, piece, usage)
        if len(piece.logged) <= MANY_PARTS:
            return event(msgspec.json.encode(chunk))
        choices = tuple(msgspec.Raw(encode_sliced(each, "logprobs")) for each in chunk.choices)
        return event(msgspec.json.encode(msgspec.structs.replace(chunk, choices=choices)))

    def _openings(self) -> bytes:
        usage = self._usage_beside()
        openings = [self._shape.opening(i, usage) for i in range(len(self._job.requests))]
        return b"".join(event(msgspec.json.encode(each)) for each in openings if each is not None)

    def _closing(self) -> bytes:
        if not self._job.delivery.include_usage:
            return b""
        closing = self._shape.closing(self._generation.usage(), self._generation.account())
        return event(msgspec.json.encode(closing))

    def _usage_beside(self) -> Usage | None | UnsetType:
        """What a chunk says of usage: a stream that ends with it says null until then."""
        delivery = self._job.delivery
        if delivery.continuous_usage:
            return self._generation.usage()
        return None if delivery.include_usage else UNSET

    async def _begin(self, send: Send, *headers: tuple[bytes, bytes]) -> None:
        warnings = "; ".join(self._job.warnings).encode("ascii", "replace")
        extra = [(b"x-quire-warnings", warnings)] if warnings else []
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *extra]})

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        self._num_sent += 1
        await send({"type": "http.response.body", "body": body, "more_body": more})
