"""A client for single requests to a server, before the load begins."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from quire.workbench.bench.exchange import Exchange, ServerAddress, build_request, exchange
from quire.workbench.bench.replies import BadReply, Response, read_response

ASK_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 2.0
MAX_SHOWN_CHARS = 300
Read = TypeVar("Read")


class BenchError(Exception):
    """Nothing can be measured; the text is for people."""


class _Message(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """The forms of an error: OpenAI's, and FastAPI's `detail`."""

    error: _Message | str | None = None
    message: str | None = None
    detail: msgspec.Raw = msgspec.Raw(b"")


def read_json(body: bytes, kind: type[Read]) -> Read | None:
    """Return the body as `kind`, None where it is no JSON of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def reason_of(response: Response) -> str:
    """Return the status and the message of a refusal, on one line."""
    refusal = read_json(response.body, _Refusal)
    if refusal is None:
        text = response.body.decode(errors="replace")
    else:
        error = refusal.error.message if isinstance(refusal.error, _Message) else refusal.error
        text = error or refusal.message or bytes(refusal.detail).decode(errors="replace")
    return f"{response.status} {' '.join(text.split())[:MAX_SHOWN_CHARS]}".rstrip()


@dataclass(frozen=True, slots=True)
class ServerClient:
    """Sends single requests to an address, with the key to it."""

    address: ServerAddress
    api_key: str | None = field(repr=False)

    def request(self, path: str, body: bytes | None = None) -> bytes:
        """Return the bytes of a request."""
        return build_request(self.address, path, body, self.api_key)

    def exchange(self, path: str, body: bytes | None, timeout_s: float) -> Exchange:
        """Send a request and return all that came back."""
        request = self.request(path, body)
        return asyncio.run(exchange(self.address, request, time.perf_counter() + timeout_s))

    def ask(self, path: str, body: bytes | None = None) -> Response:
        """Send a request and return its response, whatever the status. Raises BenchError where no
        server answers, or the key is wrong."""
        return self.check(self.exchange(path, body, ASK_TIMEOUT_S))

    def check(self, exchanged: Exchange) -> Response:
        """Return the response of an exchange that was made. Raises BenchError as `ask` does."""
        url = self.address.url
        if exchanged.failure is not None and not exchanged.reads:
            raise BenchError(f"{url}: no server answers ({exchanged.failure})")
        try:
            response = read_response(exchanged)
        except BadReply as error:
            raise BenchError(f"{url}: not an OpenAI-style server ({error})") from None
        if response.status in (401, 403):
            raise BenchError(f"{url}: the API key is missing or wrong ({reason_of(response)})")
        return response

    def is_ready(self) -> bool:
        """Return whether Quire's `/readyz` says so."""
        try:
            return self.check(self.exchange("/readyz", None, READY_TIMEOUT_S)).status == 200
        except BenchError:
            return False
