"""The table of what every route answers, by its path: the document is made from it. APIs bring rows
of their own."""

from collections.abc import Mapping

from quire.server.apis.batches.docs import DOCS as BATCH_DOCS
from quire.server.apis.openai.examples import COMPLETION
from quire.server.apis.route_doc import (
    OK,
    READS_A_BODY,
    TOKENIZES,
    Parameter,
    ResponseDoc,
    RouteDoc,
    ok,
)
from quire.server.app.apis import APIS
from quire.server.app.openapi import examples
from quire.server.app.openapi.model_docs import MODEL_ROUTES
from quire.server.app.openapi.stream_docs import STREAM_ROUTES
from quire.server.app.openapi.usage_docs import USAGE_ROUTES
from quire.server.app.page.entrance import Entrance
from quire.server.app.wire import Cancelled, Health, ResetSent, StartProgress, Startup, Version
from quire.server.errors import NOT_FOUND, UNAVAILABLE
from quire.server.http.endpoints import CACHE_PROBE
from quire.server.observability.timeline_view import TimelineList
from quire.version import __version__

HTML = "text/html"
TEXT = "text/plain"
SVG = "image/svg+xml"
OPENMETRICS = "application/openmetrics-text"


def _health(summary: str, well: str, *ill: str) -> RouteDoc:
    return RouteDoc(
        summary,
        {
            OK: (ResponseDoc(Health(well), description="All is well."),),
            UNAVAILABLE: (
                ResponseDoc(Health(ill[0]), description=f"`status` is one of: {', '.join(ill)}."),
            ),
        },
    )


_READY = _health(
    "Should this server get requests?",
    "ready",
    *("loading", "draining", "restarting", "stuck", "down"),
)
REQUEST_ID = Parameter(
    "x-request-id", "header", "The id of the request, if the client gives it one.", "my-request-1"
)
"""Every route takes it."""

ROUTES: Mapping[str, RouteDoc] = {
    **{path: doc for api in APIS for path, doc in api.docs.items()},
    **BATCH_DOCS,
    "/livez": _health("Is the server alive, or should it be started again?", "alive", "down"),
    "/readyz": _READY,
    "/health": _READY,
    "/ping": _READY,
    "/startupz": RouteDoc(
        "Has the server started, or how far has it come?",
        {
            OK: (ResponseDoc(Startup("started"), description="It has."),),
            UNAVAILABLE: (
                ResponseDoc(
                    Startup("starting", StartProgress("weights", 1, 2, 1.5)),
                    description="`status` is starting or down.",
                ),
            ),
        },
    ),
    "/metrics": RouteDoc(
        "Metrics in Prometheus' text format, or in OpenMetrics where `Accept` names it.",
        ok(
            ResponseDoc(examples.METRICS_TEXT, TEXT),
            ResponseDoc(f"{examples.METRICS_TEXT}# EOF\n", OPENMETRICS),
        ),
    ),
    "/version": RouteDoc("The version of the server.", ok(ResponseDoc(Version(__version__)))),
    "/v1/server_info": RouteDoc(
        "Facts of the model and the engine, and the configuration without what is secret; for the "
        "admin key, where there is one.",
        ok(ResponseDoc(examples.SERVER_INFO)),
    ),
    **MODEL_ROUTES,
    **USAGE_ROUTES,
    "/v1/requests": RouteDoc(
        "One's own requests that run or ran last, the newest first.",
        ok(ResponseDoc(TimelineList((examples.SUMMARY,)))),
        parameters=(
            Parameter(
                "all",
                "query",
                "`true`: those of all keys, for the admin key.",
                "false",
                "^(true|false)$",
            ),
        ),
    ),
    "/v1/loads": RouteDoc(
        "The load of the engine, for balancers.",
        ok(ResponseDoc(examples.LOADS)),
        (UNAVAILABLE,),
    ),
    "/v1/requests/{name}": RouteDoc(
        "What happened to a request of one's own, while it runs and after.",
        ok(ResponseDoc(examples.TIMELINE)),
        (NOT_FOUND,),
        parameters=(
            Parameter("name", "path", "The answer's id or its x-request-id.", "my-request-1"),
        ),
    ),
    "/v1/requests/{name}/cancel": RouteDoc(
        "End a request of one's own; its answer has what there is, and ends with `abort`.",
        ok(ResponseDoc(Cancelled(COMPLETION.id, "cancelling"))),
        (NOT_FOUND,),
        parameters=(
            Parameter("name", "path", "The answer's id or its x-request-id.", "my-request-1"),
        ),
    ),
    **STREAM_ROUTES,
    CACHE_PROBE: RouteDoc(
        "What the prefix cache holds of the prompt of a completion or a conversation, now.",
        ok(ResponseDoc(examples.CACHE_PROBE)),
        TOKENIZES,
        examples.CACHE_PROBE_REQUESTS,
        headers=("x-quire-warnings",),
    ),
    "/reset_prefix_cache": RouteDoc(
        "Empty the prefix cache of a model, or of all; for the admin key, where there is one.",
        ok(ResponseDoc(ResetSent())),
        (*READS_A_BODY, NOT_FOUND),
        examples.RESET_REQUESTS,
        body_required=False,
    ),
    "GET /": RouteDoc(
        "The page, for a browser; for a program, where to go on.",
        ok(
            ResponseDoc(Entrance(), description="Without `text/html` in `Accept`."),
            ResponseDoc("<!DOCTYPE html>", HTML, "With it, unless the server has `--no-page`."),
        ),
        parameters=(Parameter("accept", "header", "The forms that are taken.", "text/html"),),
    ),
    "/favicon.ico": RouteDoc("The icon of the page.", ok(ResponseDoc("<svg></svg>", SVG))),
    "/docs": RouteDoc("This document as a page.", ok(ResponseDoc("<!DOCTYPE html>", HTML))),
    "/openapi.json": RouteDoc("This document.", ok(ResponseDoc({"openapi": "3.1.0"}))),
}

ROUTE_PATHS = frozenset(key.rpartition(" ")[2] for key in ROUTES)
"""The paths of all routes."""


def route_key(method: str, path: str) -> str:
    """Return the key of the row of a route, whether or not the table has it."""
    own = f"{method.upper()} {path}"
    return own if own in ROUTES else path
