"""HTTP/1.1 and nothing else: an offer to upgrade is passed over, and a head has a largest size.

The parser ends a request at an `Upgrade` header, its body lost; but a server may always ignore the
offer (RFC 9110, 7.8), and Java's client makes it with every first request.
"""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class HeadTooLarge(Exception):
    """Ends the request: uvicorn answers 400 and closes."""


class PlainHttp(HttpToolsProtocol):
    def data_received(self, data: bytes) -> None:
        head, end, rest = data.partition(b"\r\n\r\n")
        if end and _UPGRADE.search(head):
            data = _UPGRADE.sub(b"", head) + end + rest
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_head_bytes += len(name) + len(value)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge
        super().on_header(name, value)
