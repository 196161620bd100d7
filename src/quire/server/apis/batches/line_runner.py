"""Runs a line of a batch on the service that live requests run on, by the same routes, without a
connection: the request is handed to the application as ASGI, and its answer is gathered.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.types import Message, Scope

from quire.server.errors import SERVER_ERROR, RequestError, error_body
from quire.server.generation.service import Service
from quire.server.models.model_use import used_model
from quire.server.tenancy.tenants import ARRIVAL, IncomingRequest, Tenant

logger = logging.getLogger(__name__)

OK = 200


class LineAnswer(NamedTuple):
    """The answer to a line: status, JSON, and the id of its request. `retry_after_s` is set where
    nothing is wrong with the line and it may be asked again in so many seconds."""

    status: int
    body: bytes
    request_id: str
    retry_after_s: int | None = None


class _Unfit(msgspec.Struct):
    """The fields that a line of a batch cannot have true."""

    stream: bool | None = None
    background: bool | None = None


@dataclass(slots=True)
class _Gathered:
    """Gathers what the application sends."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.body += message.get("body", b"")


class LineRunner:
    """Runs lines by the routes of `app`, without its middleware: that
    nobody connects needs no key, no log of access and no count of HTTP requests."""

    def __init__(self, app: Starlette, service: Service) -> None:
        self._app = app
        self._service = service

    async def run(self, url: str, body: bytes, tenant: Tenant) -> LineAnswer:
        """Return the answer. Cancelling ends the line's requests in the engine."""
        sources = self._service.sources
        request_id = "req-" + sources.random_bytes(12).hex()
        arrival = IncomingRequest(tenant, request_id, sources.clock(), in_batch=True)
        gathered = _Gathered()
        try:
            _refuse_unfit(body)
            scope = _scope(self._app, url, len(body), arrival)
            with used_model(scope):
                await self._app.router(scope, _Body(body).receive, gathered.send)
        except RequestError as error:
            return LineAnswer(error.status, error_body(error), request_id, error.retry_after_s)
        except Exception:
            logger.exception("request %s of a batch crashed", request_id)
            message = f"Internal error; the server's log has request {request_id}."
            crash = RequestError(message, code="internal", status=SERVER_ERROR)
            return LineAnswer(SERVER_ERROR, error_body(crash), request_id)
        return LineAnswer(gathered.status, bytes(gathered.body), request_id)


class _Body:
    """The body as the application receives it; after it the client stays."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": body, "more_body": False}


def _refuse_unfit(body: bytes) -> None:
    try:
        unfit = msgspec.json.decode(body, type=_Unfit)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # the endpoint says what is wrong
    if unfit.stream or unfit.background:
        field, how = (
            ("stream", "streamed") if unfit.stream else ("background", "run in the background")
        )
        raise RequestError(
            f"A line of a batch is not {how}: leave '{field}' out.",
            param=field,
            code="unsupported_parameter",
        )


def _scope(app: Starlette, url: str, num_bytes: int, arrival: IncomingRequest) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ],
        "client": None,
        "server": None,
        "app": app,
        ARRIVAL: arrival,
    }
