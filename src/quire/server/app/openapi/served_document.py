"""Serves the document of the API. It is written and compressed once: whoever has no key may ask for
it too, and to do that again for each request would take the time of those who have."""

import asyncio
import gzip
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.compression import GZIP
from quire.server.http.json_responses import JSON
from quire.server.http.negotiation import takes

LEVEL = 6


class ServedDocument:
    """The handler of the document that `make` returns, which is called once."""

    def __init__(self, make: Callable[[], dict[str, object]]) -> None:
        self._make = make
        self._plain = b""
        self._compressed = b""

    async def answer(self, request: Request) -> Response:
        if not self._compressed:
            self._plain = msgspec.json.encode(self._make())
            self._compressed = await asyncio.to_thread(gzip.compress, self._plain, LEVEL)
        if not takes(request.headers.get("accept-encoding", ""), GZIP):
            return Response(self._plain, media_type=JSON)  # `Compression` says what it depends on
        headers = {"vary": "accept-encoding", "content-encoding": GZIP}
        return Response(self._compressed, headers=headers, media_type=JSON)
