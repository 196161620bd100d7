"""HTTP/1.1 and nothing else: an offer to upgrade is passed over, a head has a largest size and a
longest time to come, and what is no HTTP is told so in the shape of every other error.

The parser ends a request at an `Upgrade` header, its body lost; but a server may always ignore the
offer (RFC 9110, 7.8), and Java's client makes it with every first request.
"""

import asyncio
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.server.errors import TOO_SLOW, RequestError, error_body

MAX_HEAD_BYTES = 64 * 1024
HEAD_PATIENCE_S = 30.0


class HeadTooLarge(Exception):
    """Ends the connection."""


class PlainHttp(HttpToolsProtocol):
    _head_timer: asyncio.TimerHandle | None = None
    _has_begun = False
    _num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(self.timeout_keep_alive)  # a balancer may open it for later

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_no_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_what_is_wrong(error))

    def on_message_begin(self) -> None:
        self._num_head_bytes = 0
        self._has_begun = True
        self._await_head(HEAD_PATIENCE_S)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_head_bytes += len(name) + len(value)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._await_no_head()
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_begun = False
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _await_head(self, patience_s: float) -> None:
        self._await_no_head()
        self._head_timer = self.loop.call_later(patience_s, self._on_slow_head)

    def _await_no_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _on_slow_head(self) -> None:
        if self._is_answering:
            self._await_head(HEAD_PATIENCE_S)
        elif self._has_begun:
            message = f"The head of the request did not come within {HEAD_PATIENCE_S:g} s."
            self._refuse(RequestError(message, code="request_timeout", status=TOO_SLOW))
        else:
            self.transport.close()

    def _decline(self, rest: bytes) -> None:
        """The same head once more, without the offer, and what came after it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(RequestError("This server is no proxy.", code="method_not_allowed"))
            return
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: RequestError) -> None:
        """Ends the connection. Nothing is said into an answer that is under way."""
        if not self._is_answering:
            body = error_body(error)
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def _what_is_wrong(error: httptools.HttpParserError) -> RequestError:
    if isinstance(error.__context__, HeadTooLarge):
        return RequestError(
            f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.",
            code="head_too_large",
            status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        )
    return RequestError(f"The request is not valid HTTP/1.1: {error}.", code="invalid_http")
