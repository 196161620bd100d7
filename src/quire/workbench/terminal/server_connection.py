"""Requests to a server over connections that are kept open; what goes wrong is told in words."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx

from quire.workbench.bench.exchange import parse_address
from quire.workbench.bench.replies import Response
from quire.workbench.bench.server_client import read_json, reason_of
from quire.workbench.terminal.event_stream import BadStream, ServerEvent, read_events

CONNECT_TIMEOUT_S = 10.0
GET_TIMEOUT_S = 30.0
MAX_BODY_BYTES = 2**22
"""A body that is no stream is read so far."""
Decoded = TypeVar("Decoded")


class ServerFault(Exception):
    """A server did not answer as asked; the text is for people and may hold the server's own.
    `status` is that of a refusal, None where there was no answer."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class ServerConnection:
    """The way to one server; an async context.

    url: the base URL, with or without `/v1`. ValueError says what is wrong with it.
    uses_proxies: proxies and certificates of the environment are used, as a server that is not of
        this machine may need.
    """

    def __init__(self, url: str, api_key: str | None, *, uses_proxies: bool = True) -> None:
        self.url = parse_address(url).url
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.AsyncClient(
            headers=headers,
            trust_env=uses_proxies,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        )

    async def __aenter__(self) -> "ServerConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, kind: type[Decoded]) -> Decoded | None:
        """Return the JSON of a path, None where it is no JSON of that kind. Raises ServerFault."""
        try:
            async with self._http.stream("GET", self.url + path, timeout=GET_TIMEOUT_S) as got:
                body = await _beginning(got)
        except httpx.HTTPError as error:
            raise self._no_answer(error) from None
        if got.status_code != httpx.codes.OK:
            raise _refusal(got, body)
        return read_json(body, kind)

    @asynccontextmanager
    async def events(
        self, path: str, body: bytes | None = None, params: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[ServerEvent]]:
        """Ask for a stream of events, by POST where there is a body of JSON. To leave the block
        closes the connection. Raises ServerFault, within the block too."""
        method = "GET" if body is None else "POST"
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._http.stream(
                method, self.url + path, content=body, headers=headers, params=params
            ) as got:
                if got.status_code != httpx.codes.OK:
                    raise _refusal(got, await _beginning(got))
                yield read_events(got.aiter_bytes())
        except BadStream as error:
            raise ServerFault(str(error)) from None
        except httpx.HTTPError as error:
            raise self._no_answer(error) from None

    def _no_answer(self, error: httpx.HTTPError) -> ServerFault:
        said = f": {error}" if str(error) else ""
        return ServerFault(f"{self.url} does not answer ({type(error).__name__}{said})")


def _refusal(got: httpx.Response, body: bytes) -> ServerFault:
    return ServerFault(reason_of(Response(got.status_code, body)), got.status_code)


async def _beginning(got: httpx.Response) -> bytes:
    """Return a body, or as much of it as is read."""
    found = b""
    async for part in got.aiter_bytes():
        found += part
        if len(found) > MAX_BODY_BYTES:
            break
    return found
