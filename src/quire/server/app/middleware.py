"""The middleware around every request: its id, its key, its line in the log, and an answer to any
crash.

It is plain ASGI: between the handlers and the socket there is only a function that adds a header.
"""

import logging
from collections.abc import Sequence
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.logs import FIELDS
from quire.server.apis.anthropic.errors import is_of_messages
from quire.server.app.error_responses import error_response
from quire.server.app.field_names import known_part
from quire.server.app.page.files import PAGE_FOLDER
from quire.server.errors import SERVER_ERROR, UNAUTHORIZED, RequestError
from quire.server.generation.service import Service
from quire.server.http.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from quire.server.http.request_ids import MESSAGE_REQUEST_ID, REQUEST_ID, sent_request_id
from quire.server.http.trace_context import TRACEPARENT, trace_context
from quire.server.http.web_access import WebAccess
from quire.server.models.model_use import MODEL_USE, ModelUse, used_model
from quire.server.observability.http_metrics import HttpExchange
from quire.server.observability.load_header import REPORT_HEADER, load_report
from quire.server.tenancy.rates import RATES
from quire.server.tenancy.request_log import RequestFigures, as_text
from quire.server.tenancy.tenants import ARRIVAL, EVERYONE, IncomingRequest

logger = logging.getLogger("quire.access")

PROBES = frozenset(("/health", "/livez", "/ping", "/readyz", "/startupz"))
"""Paths that are answered at once, whoever else waits."""
OPEN_PATHS = PROBES | {"/", "/favicon.ico", "/metrics", "/version", "/docs", "/openapi.json"}
"""Paths that need no key, are not logged, and do not keep a draining server up. The files of
`/docs` and of the page are such too."""
DOCS_ASSETS = "/docs/assets"
_OPEN_FOLDERS = (f"{DOCS_ASSETS}/", f"{PAGE_FOLDER}/")

_REPORTING = frozenset((COMPLETIONS, CHAT, RESPONSES, MESSAGES))
"""Paths whose answers tell the load of the engine, where they are asked to."""

_PLAIN = "/:@!$&'()*+,;=-._~%"
"""Characters that a path keeps in the log; all others, line ends too, are escaped as in a URL."""


class RequestMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._web_access = WebAccess(service.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_open = scope["path"] in OPEN_PATHS or scope["path"].startswith(_OPEN_FOLDERS)
        refusal = self._web_access.refusal(scope, is_open_path=is_open)
        exchange = _Exchange(scope, send, self._service)
        if is_open and refusal is None:
            if scope["path"] not in PROBES:
                await self._service.arrival_throttle.wait(EVERYONE.name)
            await exchange.run(self._app, receive)
            return
        self._service.num_open += 1
        try:
            tenant = self._service.tenants.authenticate(scope["headers"])
            await self._service.arrival_throttle.wait((tenant or EVERYONE).name)
            if refusal is not None:
                self._service.metrics.on_refused(refusal.code)
                await exchange.refuse(refusal, receive)
            elif tenant is None:
                await exchange.refuse(_NO_KEY, receive)
            else:
                scope[ARRIVAL] = IncomingRequest(
                    tenant, exchange.id, exchange.began_s, exchange.trace, exchange.figures
                )
                with used_model(scope):
                    await exchange.run(self._app, receive)
        finally:
            self._service.num_open -= 1
            exchange.log()
            exchange.count()


_NO_KEY = RequestError(
    "Missing or wrong API key: send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY', and "
    "where both are sent the same in both.",
    code="invalid_api_key",
    status=UNAUTHORIZED,
)


class _Exchange:
    """One request and its answer, as the log and the metrics see them."""

    def __init__(self, scope: Scope, send: Send, service: Service) -> None:
        self._scope = scope
        self._send = send
        self._service = service
        self._clock = service.sources.clock
        self.began_s = self._clock()
        self._status = 0
        self._num_sent = 0
        self.id = _request_id(scope["headers"], service)
        self.figures = RequestFigures()
        self.trace = trace_context(
            scope["headers"], service.sources.random_bytes, begins=service.spans is not None
        )

    async def run(self, app: ASGIApp, receive: Receive) -> None:
        try:
            await app(self._scope, receive, self.send)
        except Exception:
            logger.exception("request %s crashed", self.id)
            if self._status == 0:
                message = f"Internal error; the server's log has request {self.id}."
                error = RequestError(message, code="internal", status=SERVER_ERROR)
                await self.refuse(error, receive)

    async def refuse(self, error: RequestError, receive: Receive) -> None:
        self.figures.fail(error.code, known_part(error.param))
        response = error_response(error, self._scope["path"], self.id)
        await response(self._scope, receive, self.send)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.id
            if is_of_messages(self._scope["path"]):
                headers[MESSAGE_REQUEST_ID] = self.id
            if self.trace is not None:
                headers[TRACEPARENT] = self.trace.header
            rates = self._scope.get(RATES)
            if rates is not None:
                headers.update(dict(rates.headers(self._clock())))
            report = self._load_report()
            if report is not None:
                headers[REPORT_HEADER] = report
        self._num_sent += len(message.get("body", b""))
        await self._send(message)

    def _load_report(self) -> str | None:
        if self._scope["path"] not in _REPORTING or self._status == UNAUTHORIZED:
            return None
        use = self._scope.get(MODEL_USE)
        model = use.model if isinstance(use, ModelUse) else None
        stats = (model or self._service.default_model).metrics.stats
        return load_report(self._scope["headers"], stats)

    def log(self) -> None:
        """Log the request, with what it generated."""
        scope = self._scope
        line = {"trace_id": self.trace.trace_id} if self.trace is not None else {}
        arrival = scope.get(ARRIVAL)
        if arrival is not None and arrival.tenant.name:
            line["tenant"] = arrival.tenant.name
        told = line | self.figures.fields()
        path, duration_s = quote(scope["path"], safe=_PLAIN), self._clock() - self.began_s
        logger.info(
            '%s "%s %s" %d %.3fs%s',
            *(self.id, scope["method"], path, self._status, duration_s, as_text(told)),
            extra={
                FIELDS: {
                    "request_id": self.id,
                    "method": scope["method"],
                    "path": path,
                    "status": self._status,
                    "duration_s": round(duration_s, 6),
                    **told,
                }
            },
        )

    def count(self) -> None:
        scope = self._scope
        declared = dict(scope["headers"]).get(b"content-length", b"")
        self._service.metrics.http.observe(
            HttpExchange(
                scope["method"],
                scope["path"],
                self._status,
                self._clock() - self.began_s,
                int(declared) if declared.isdigit() else 0,
                self._num_sent,
            )
        )


def _request_id(headers: Sequence[tuple[bytes, bytes]], service: Service) -> str:
    """Return the client's id, else a new one."""
    return sent_request_id(headers) or "req-" + service.sources.random_bytes(12).hex()
