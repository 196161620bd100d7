"""Speaks HTTP/1.1 and nothing else, within limits that hold while the bytes still come.

A head has a largest size and a longest time, whatever it is cut into; requests that are sent ahead
of their answers wait in the socket, not in memory; what is not HTTP is answered once, in the shape
of every other error, and the connection ends. An answer that the client does not read ends it too.

The parser ends a request at an `Upgrade` header, its body lost; but a server may always ignore the
offer (RFC 9110, 7.8), and Java's client makes it with every first request.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from quire.server.config import HttpLimits
from quire.server.errors import TOO_SLOW, RequestError, error_body
from quire.server.http.head_checks import check_head, head_too_large, parse_error
from quire.server.http.old_http import OLD, without_chunks
from quire.server.http.request_ids import REQUEST_ID, sent_request_id

logger = logging.getLogger(__name__)

PIECE_BYTES = 1024
"""The parser is given so many bytes at once of anything but a body of known length. The size of a
head is exact to one piece, and so many bytes of pipelined requests may wait in parsed form."""
BYTES_PER_ITERATION = 32 * 1024
"""So many bytes of one connection are parsed in one iteration of the event loop: a chunk of one
byte costs a microsecond, and up to 256 KiB come at once."""


class ParserState(Enum):
    """The parts of a request in which the parser can be."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


class HeldFlow(FlowControl):
    """Flow control whose reading stays paused while `is_held`: that an application asks for a body
    which has come already must not bring in what follows it."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        if not self._transport.is_closing():
            self.pause_reading()

    def release(self) -> None:
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held and not self._transport.is_closing():
            super().resume_reading()


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """The rules that every connection of a server keeps to.

    on_refused: called with the code of each error that a connection answers itself, where no
        application sees it.
    is_ending: tells whether connections end with the next answer, which says so.
    """

    limits: HttpLimits
    on_refused: Callable[[str], None]
    is_ending: Callable[[], bool]


class PlainHttp(HttpToolsProtocol):
    """One connection, which answers itself what is not HTTP or goes beyond a limit."""

    flow: HeldFlow

    def __init__(
        self,
        rules: ConnectionRules,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = rules.limits
        self._on_refused = rules.on_refused
        self._is_ending = rules.is_ending
        self._unparsed = b""
        self._num_parsed = 0  # bytes of `_unparsed` that the parser has had
        self._parser_state = ParserState.BETWEEN
        self._num_body_left = 0  # of a body whose length the head says
        self._num_head_bytes = 0  # since the message began, or since its last body byte
        self._counts_anew = False  # within this piece a message began or ended, or body bytes came
        self._num_url_bytes = 0  # within this piece
        self._active: RequestResponseCycle | None = None  # the request that is being answered
        self._last: RequestResponseCycle | None = None  # whose answer says that the connection ends
        self._fault: RequestError | None = None
        self._fault_id: str | None = None  # of the request at fault, where its client has sent one
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._await(self._max_idle_s, transport.close)  # a balancer opens it for later

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_nothing()
        self._stop_watching_reader()
        self._forget_unparsed()
        self.pipeline.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._is_answering:
            super().shutdown()
        else:
            self.transport.close()

    def end_soon(self) -> None:
        """Begin to end: the answer to the last request that comes says so, and where none comes for
        a while the connection is closed. `is_ending` must hold from now on."""
        if self._active is not None:
            self._end_with_last()
        if self._fault is None:
            self._await_next()

    def _end_with_last(self) -> None:
        """Let the answer to the newest request say that the connection ends with it, unless that
        answer has begun; those before it in a pipeline say so no more."""
        before, newest = self._last, self.cycle
        self._last = None
        if before is not None and not before.response_started:
            before.keep_alive = True
        if newest.keep_alive and not newest.response_started:
            newest.keep_alive = False
            self._last = newest

    # What comes in, piece by piece.

    def data_received(self, data: bytes) -> None:
        if self._fault is None:
            self._unparsed = self._unparsed[self._num_parsed :] + data
            self._num_parsed = 0
            self._parse()

    def _parse(self) -> None:
        """Parse what has come, until a request must wait for those before it or other connections
        must be served. Nothing more is read from the socket before that."""
        num_left = BYTES_PER_ITERATION
        while self._has_unparsed and not self.pipeline and not self.transport.is_closing():
            if num_left <= 0:
                self.loop.call_soon(self._parse)
                break
            if not self._num_body_left:
                num_left -= PIECE_BYTES
            self._parse_piece(self._num_body_left or PIECE_BYTES)
        waits_to_refuse = self._fault is not None and self._is_answering
        if self._has_unparsed or self.pipeline or waits_to_refuse:
            self.flow.hold()
        elif self.flow.is_held:
            self.flow.release()

    @property
    def _has_unparsed(self) -> bool:
        return self._num_parsed < len(self._unparsed)

    def _forget_unparsed(self) -> None:
        self._unparsed, self._num_parsed = b"", 0

    def _parse_piece(self, num_bytes: int) -> None:
        piece = self._unparsed[self._num_parsed : self._num_parsed + num_bytes]
        self._num_parsed += len(piece)
        self._counts_anew, self._num_url_bytes = False, 0
        try:
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._num_parsed -= len(piece) - upgrade.args[0]
                self._pass_over_upgrade()
        except httptools.HttpParserError as error:
            self._refuse(parse_error(error))
            return
        self._num_head_bytes = 0 if self._counts_anew else self._num_head_bytes + len(piece)
        if self._num_head_bytes > self._limits.max_head_bytes:
            self._refuse(head_too_large(self._limits, is_url=self._num_url_bytes == len(piece)))

    def _pass_over_upgrade(self) -> None:
        """Give a new parser the same head without the offer; what came after it is still to be
        parsed."""
        method = self.parser.get_method()
        version = self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(RequestError("This server is no proxy.", code="method_not_allowed"))
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._parser_state = ParserState.HEAD
        self._counts_anew = True
        self._await(self._limits.head_timeout_s, self._on_slow_head)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._num_url_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._parser_state is ParserState.BODY:
            return  # a trailer says nothing that is acted on
        if len(self.headers) == self._limits.max_headers:
            raise head_too_large(self._limits, is_url=False)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        check_head(self.parser.get_http_version(), self.headers)
        super().on_headers_complete()
        if self._is_ending():
            self._end_with_last()
        self._await_nothing()
        self._parser_state = ParserState.BODY
        lengths = [int(value) for name, value in self.headers if name == b"content-length"]
        self._num_body_left = sum(lengths)

    def on_body(self, body: bytes) -> None:
        self._counts_anew = True
        if self._num_body_left:
            self._num_body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._counts_anew = True
        self._parser_state = ParserState.BETWEEN
        super().on_message_complete()
        self._await_next()

    # Which request is answered.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        if cycle.scope["http_version"] == OLD:
            app = without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def _is_answering(self) -> bool:
        return self._active is not None and not self._active.response_complete

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self._active is not None:
            self._active.body = bytearray()  # what was refused unread
        self._watch_reader()
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._fault is not None:
            self._answer_fault(self._fault)
            return
        self._await_next()
        self._parse()
        self.flow.resume_reading()  # of a body that was refused before it was all there

    # How long each part may take.

    def _await(self, patience_s: float, act: Callable[[], None]) -> None:
        self._await_nothing()
        self._read_timer = self.loop.call_later(patience_s, act)

    @property
    def _max_idle_s(self) -> float:
        limits = self._limits
        if self._is_ending():
            return min(limits.ending_idle_s, limits.keep_alive_s)
        return limits.keep_alive_s

    def _await_nothing(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()

    def _await_next(self) -> None:
        """Wait, after an answer, for the rest of its request, or for the next one."""
        if self._is_answering or self.transport.is_closing():
            return
        if self._parser_state is ParserState.BODY:
            self._await(self._limits.discard_s, self.transport.close)
        elif self._parser_state is ParserState.BETWEEN:
            self._await(self._max_idle_s, self.transport.close)

    def _on_slow_head(self) -> None:
        patience_s = self._limits.head_timeout_s
        if self._is_answering:
            self._await(patience_s, self._on_slow_head)
        else:
            message = f"The head of the request did not come within {patience_s:g} s."
            self._refuse(RequestError(message, code="request_timeout", status=TOO_SLOW))

    # A client that does not read.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching_reader()

    def _watch_reader(self) -> None:
        """See to it that the client takes some bytes now and then, while any wait for it."""
        self._stop_watching_reader()
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes:
            self._write_timer = self.loop.call_later(
                self._limits.write_timeout_s, self._check_reader, num_bytes
            )

    def _stop_watching_reader(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _check_reader(self, num_bytes_before: int) -> None:
        takes_none = self.transport.get_write_buffer_size() >= num_bytes_before
        if takes_none and (self.flow.write_paused or not self._is_answering):
            self._on_refused("client_not_reading")
            self.transport.abort()
        else:
            self._watch_reader()

    # What is no request.

    def _refuse(self, error: RequestError) -> None:
        """Answer with an error in place of the request that is being parsed, once those before it
        are answered, and end the connection."""
        self._on_refused(error.code)
        self._forget_unparsed()
        self._fault = error
        if self._parser_state is not ParserState.BETWEEN:
            self._fault_id = sent_request_id(self.headers)
        if self._parser_state is ParserState.BODY and not self._take_back():
            self.transport.close()  # it has an answer
        elif not self._is_answering:
            self._answer_fault(error)

    def _take_back(self) -> bool:
        """Take a request, part of whose body came, back from the application; return False if that
        has begun to answer."""
        if self.cycle is not self._active:
            self.pipeline.popleft()
            return True
        if self.cycle.response_started:
            return False
        self._active = None
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return True

    def _answer_fault(self, error: RequestError) -> None:
        """Send the error, and take what still comes for a while: closing over unread bytes would
        reset the connection before the client has read it. TLS has no half of a connection to
        close: there the client ends it, who knows the answer's length, or the time does."""
        body = error_body(error)
        request_id = f"{REQUEST_ID}: {self._fault_id}\r\n" if self._fault_id else ""
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{request_id}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.release()
        self._await(self._limits.linger_s, self.transport.abort)
