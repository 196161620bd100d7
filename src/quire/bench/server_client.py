"""A server's address with the key to it: single questions before the load begins."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from quire.bench.exchange import Address, Exchange, build_request, exchange
from quire.bench.replies import BadReply, Response, read_response

ASK_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 2.0
MAX_SHOWN_CHARS = 300
Read = TypeVar("Read")


class BenchError(Exception):
    """Nothing can be measured; the text is for people."""


class _Message(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """The shapes in which servers say no: OpenAI's, and FastAPI's `detail`."""

    error: _Message | str | None = None
    message: str | None = None
    detail: msgspec.Raw = msgspec.Raw(b"")


def read_json(body: bytes, kind: type[Read]) -> Read | None:
    """None where the body is no JSON of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def reason_of(response: Response) -> str:
    """What a refusal says, on one line."""
    refusal = read_json(response.body, _Refusal)
    if refusal is None:
        text = response.body.decode(errors="replace")
    else:
        error = refusal.error.message if isinstance(refusal.error, _Message) else refusal.error
        text = error or refusal.message or bytes(refusal.detail).decode(errors="replace")
    return f"{response.status} {' '.join(text.split())[:MAX_SHOWN_CHARS]}".rstrip()


@dataclass(frozen=True, slots=True)
class ServerClient:
    """Where to ask, and with which key."""

    address: Address
    api_key: str | None = field(repr=False)

    def request(self, path: str, body: bytes | None = None) -> bytes:
        return build_request(self.address, path, body, self.api_key)

    def exchange(self, path: str, body: bytes | None, timeout_s: float) -> Exchange:
        request = self.request(path, body)
        return asyncio.run(exchange(self.address, request, time.perf_counter() + timeout_s))

    def ask(self, path: str, body: bytes | None = None) -> Response:
        """Any status but one that says the key is wrong. Raises BenchError."""
        return self.check(self.exchange(path, body, ASK_TIMEOUT_S))

    def check(self, exchanged: Exchange) -> Response:
        """The same for an exchange that was made."""
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
        """As Quire's `/readyz` says."""
        try:
            return self.check(self.exchange("/readyz", None, READY_TIMEOUT_S)).status == 200
        except BenchError:
            return False
