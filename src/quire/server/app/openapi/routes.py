"""The table of what every route answers, by its path: the document is made from it. A path of
several methods has a row for each, which begins with the method, as `POST /v1/files`."""

from collections.abc import Mapping

from quire.server.apis.batches.protocol import FileDeleted
from quire.server.apis.openai.wire import ChatChunk, CompletionBody, Detokenized, Tokenized
from quire.server.apis.responses.stream_events import EVENT_TYPES
from quire.server.app.openapi import (
    embedding_examples,
    examples,
    message_examples,
    response_examples,
)
from quire.server.app.openapi.model_docs import MODEL_ROUTES
from quire.server.app.openapi.prefix_docs import PREFIX_ROUTES
from quire.server.app.openapi.route_doc import Parameter, ResponseDoc, RouteDoc
from quire.server.app.openapi.scoring_docs import SCORING_ROUTES
from quire.server.app.openapi.stored_response_docs import STORED_RESPONSE_ROUTES
from quire.server.app.openapi.stream_docs import STREAM_ROUTES
from quire.server.app.openapi.usage_docs import USAGE_ROUTES
from quire.server.app.page.entrance import Entrance
from quire.server.app.wire import Cancelled, Health, ResetSent, StartProgress, Startup, Version
from quire.server.errors import (
    NOT_FOUND,
    TOO_LARGE,
    TOO_LATE,
    TOO_MANY,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA,
    ErrorBody,
)
from quire.server.generation.protocol.capabilities import (
    CACHE_PROBE,
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
)
from quire.server.observability.timeline_view import TimelineList
from quire.version import __version__

EVENTS = "text/event-stream"
HTML = "text/html"
TEXT = "text/plain"
SVG = "image/svg+xml"
OPENMETRICS = "application/openmetrics-text"
OK = 200
STREAMED = "With `stream`: events, an error that comes late among them."
READS_A_BODY = (TOO_LARGE, UNSUPPORTED_MEDIA, UNAVAILABLE)
"""Errors of the routes that read a body, beside those of all."""
TOKENIZES = (*READS_A_BODY, NOT_FOUND, TOO_MANY, TOO_LATE)
GENERATES = TOKENIZES


def _ok(*responses: ResponseDoc) -> Mapping[int, tuple[ResponseDoc, ...]]:
    return {OK: responses}


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
_LOAD_REPORT = Parameter(
    "endpoint-load-metrics-format",
    "header",
    "`text` or `json`: the answer's head tells the load of the engine, for balancers.",
    "text",
)
_BETAS = Parameter(
    "anthropic-beta",
    "header",
    "Betas of Anthropic's API; Quire acts on none, and X-Quire-Warnings names them.",
    "interleaved-thinking-2025-05-14",
)
REQUEST_ID = Parameter(
    "x-request-id", "header", "The id of the request, if the client gives it one.", "my-request-1"
)
"""Every route takes it."""
_PAGES = (
    Parameter("limit", "query", "So many items at most.", "20", "^[1-9][0-9]{0,4}$"),
    Parameter("after", "query", "The id of the item before the first.", "file-1"),
)
_FILE = (Parameter("name", "path", "The id of the file.", examples.FILE.id),)
_BATCH = (Parameter("name", "path", "The id of the batch.", examples.BATCH.id),)

ROUTES: Mapping[str, RouteDoc] = {
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
        _ok(
            ResponseDoc(examples.METRICS_TEXT, TEXT),
            ResponseDoc(f"{examples.METRICS_TEXT}# EOF\n", OPENMETRICS),
        ),
    ),
    "/version": RouteDoc("The version of the server.", _ok(ResponseDoc(Version(__version__)))),
    "/v1/server_info": RouteDoc(
        "Facts of the model and the engine, and the configuration without what is secret; for the "
        "admin key, where there is one.",
        _ok(ResponseDoc(examples.SERVER_INFO)),
    ),
    **MODEL_ROUTES,
    **USAGE_ROUTES,
    "/v1/requests": RouteDoc(
        "One's own requests that run or ran last, the newest first.",
        _ok(ResponseDoc(TimelineList((examples.SUMMARY,)))),
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
        _ok(ResponseDoc(examples.LOADS)),
        (UNAVAILABLE,),
    ),
    "/v1/requests/{name}": RouteDoc(
        "What happened to a request of one's own, while it runs and after.",
        _ok(ResponseDoc(examples.TIMELINE)),
        (NOT_FOUND,),
        parameters=(
            Parameter("name", "path", "The answer's id or its x-request-id.", "my-request-1"),
        ),
    ),
    "/v1/requests/{name}/cancel": RouteDoc(
        "End a request of one's own; its answer has what there is, and ends with `abort`.",
        _ok(ResponseDoc(Cancelled(examples.COMPLETION.id, "cancelling"))),
        (NOT_FOUND,),
        parameters=(
            Parameter("name", "path", "The answer's id or its x-request-id.", "my-request-1"),
        ),
    ),
    **STREAM_ROUTES,
    COMPLETIONS: RouteDoc(
        "Go on with a text.",
        _ok(
            ResponseDoc(examples.COMPLETION),
            ResponseDoc(examples.COMPLETION_EVENTS, EVENTS, STREAMED, (CompletionBody, ErrorBody)),
        ),
        GENERATES,
        examples.COMPLETION_REQUESTS,
        (_LOAD_REPORT,),
        headers=("x-quire-warnings", "endpoint-load-metrics"),
    ),
    CHAT: RouteDoc(
        "Go on with a conversation.",
        _ok(
            ResponseDoc(examples.CHAT_COMPLETION),
            ResponseDoc(examples.CHAT_EVENTS, EVENTS, STREAMED, (ChatChunk, ErrorBody)),
        ),
        GENERATES,
        examples.CHAT_REQUESTS,
        (_LOAD_REPORT,),
        headers=("x-quire-warnings", "endpoint-load-metrics"),
    ),
    RESPONSES: RouteDoc(
        "A response to a text or to items of a conversation.",
        _ok(
            ResponseDoc(response_examples.RESPONSE),
            ResponseDoc(
                response_examples.RESPONSE_EVENTS, EVENTS, STREAMED, EVENT_TYPES, has_done=False
            ),
        ),
        GENERATES,
        response_examples.RESPONSE_REQUESTS,
        (_LOAD_REPORT,),
        headers=("x-quire-warnings", "endpoint-load-metrics"),
    ),
    **STORED_RESPONSE_ROUTES,
    MESSAGES: RouteDoc(
        "The next message of a conversation, as Anthropic's API has it.",
        _ok(
            ResponseDoc(message_examples.MESSAGE),
            ResponseDoc(
                message_examples.MESSAGE_EVENTS,
                EVENTS,
                STREAMED,
                message_examples.EVENT_TYPES,
                has_done=False,
            ),
        ),
        GENERATES,
        message_examples.MESSAGE_REQUESTS,
        (_LOAD_REPORT, _BETAS),
        headers=("x-quire-warnings", "endpoint-load-metrics", "request-id"),
    ),
    COUNT_TOKENS: RouteDoc(
        "The number of tokens that a conversation has as a prompt.",
        _ok(ResponseDoc(message_examples.COUNT)),
        TOKENIZES,
        message_examples.COUNT_REQUESTS,
        (_BETAS,),
        headers=("x-quire-warnings", "request-id"),
    ),
    **SCORING_ROUTES,
    EMBEDDINGS: RouteDoc(
        "A vector for each text.",
        _ok(ResponseDoc(embedding_examples.EMBEDDINGS)),
        GENERATES,
        embedding_examples.EMBEDDING_REQUESTS,
        headers=("x-quire-warnings",),
    ),
    f"{COMPLETIONS}/render": RouteDoc(
        "The prompts of a completion, without running it.",
        _ok(ResponseDoc(examples.RENDERED)),
        TOKENIZES,
        examples.COMPLETION_REQUESTS,
        headers=("x-quire-warnings",),
    ),
    f"{CHAT}/render": RouteDoc(
        "The prompt of a conversation, without running it.",
        _ok(ResponseDoc(examples.RENDERED)),
        TOKENIZES,
        examples.CHAT_REQUESTS,
        headers=("x-quire-warnings",),
    ),
    "/tokenize": RouteDoc(
        "The tokens of a text or a conversation.",
        _ok(ResponseDoc(Tokenized(3, 2048, (5, 6, 7)))),
        TOKENIZES,
        examples.TOKENIZE_REQUESTS,
        headers=("x-quire-warnings",),
    ),
    "/detokenize": RouteDoc(
        "The text of tokens.",
        _ok(ResponseDoc(Detokenized("Once upon a time"))),
        TOKENIZES,
        examples.DETOKENIZE_REQUESTS,
    ),
    CACHE_PROBE: RouteDoc(
        "What the prefix cache holds of the prompt of a completion or a conversation, now.",
        _ok(ResponseDoc(examples.CACHE_PROBE)),
        TOKENIZES,
        examples.CACHE_PROBE_REQUESTS,
        headers=("x-quire-warnings",),
    ),
    **PREFIX_ROUTES,
    "/reset_prefix_cache": RouteDoc(
        "Empty the prefix cache of a model, or of all; for the admin key, where there is one.",
        _ok(ResponseDoc(ResetSent())),
        (*READS_A_BODY, NOT_FOUND),
        examples.RESET_REQUESTS,
        body_required=False,
    ),
    "GET /v1/files": RouteDoc(
        "One's own files.",
        _ok(ResponseDoc(examples.FILES)),
        (NOT_FOUND,),
        parameters=(
            *_PAGES,
            Parameter("order", "query", "Newest first: `desc`; or `asc`.", "desc", "^(asc|desc)$"),
            Parameter("purpose", "query", "Files of this purpose alone.", "batch"),
        ),
    ),
    "POST /v1/files": RouteDoc(
        "Upload a file of requests for a batch.",
        _ok(ResponseDoc(examples.FILE)),
        (*READS_A_BODY, NOT_FOUND, TOO_MANY),
        form={
            "type": "object",
            "required": ["file", "purpose"],
            "properties": {
                "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                "purpose": {"const": "batch"},
                "expires_after[anchor]": {"const": "created_at"},
                "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
            },
            "additionalProperties": False,
        },
    ),
    "GET /v1/files/{name}": RouteDoc(
        "A file of one's own.", _ok(ResponseDoc(examples.FILE)), (NOT_FOUND,), parameters=_FILE
    ),
    "DELETE /v1/files/{name}": RouteDoc(
        "Delete a file of one's own.",
        _ok(ResponseDoc(FileDeleted(examples.FILE.id))),
        (NOT_FOUND,),
        parameters=_FILE,
    ),
    "/v1/files/{name}/content": RouteDoc(
        "The content of a file of one's own.",
        _ok(ResponseDoc('{"custom_id": "1"}', "application/octet-stream")),
        (NOT_FOUND,),
        parameters=_FILE,
    ),
    "GET /v1/batches": RouteDoc(
        "One's own batches, the newest first.",
        _ok(ResponseDoc(examples.BATCHES)),
        (NOT_FOUND,),
        parameters=_PAGES,
    ),
    "POST /v1/batches": RouteDoc(
        "Run the requests of a file when live requests leave room for them.",
        _ok(ResponseDoc(examples.BATCH)),
        (*READS_A_BODY, NOT_FOUND),
    ),
    "/v1/batches/{name}": RouteDoc(
        "How far a batch of one's own is.",
        _ok(ResponseDoc(examples.BATCH)),
        (NOT_FOUND,),
        parameters=_BATCH,
    ),
    "/v1/batches/{name}/cancel": RouteDoc(
        "Cancel a batch of one's own; what is answered stays.",
        _ok(ResponseDoc(examples.BATCH)),
        (NOT_FOUND,),
        parameters=_BATCH,
    ),
    "GET /": RouteDoc(
        "The page, for a browser; for a program, where to go on.",
        _ok(
            ResponseDoc(Entrance(), description="Without `text/html` in `Accept`."),
            ResponseDoc("<!DOCTYPE html>", HTML, "With it, unless the server has `--no-page`."),
        ),
        parameters=(Parameter("accept", "header", "The forms that are taken.", "text/html"),),
    ),
    "/favicon.ico": RouteDoc("The icon of the page.", _ok(ResponseDoc("<svg></svg>", SVG))),
    "/docs": RouteDoc("This document as a page.", _ok(ResponseDoc("<!DOCTYPE html>", HTML))),
    "/openapi.json": RouteDoc("This document.", _ok(ResponseDoc({"openapi": "3.1.0"}))),
}

ROUTE_PATHS = frozenset(key.rpartition(" ")[2] for key in ROUTES)
"""The paths of all routes."""


def route_key(method: str, path: str) -> str:
    """Return the key of the row of a route, whether or not the table has it."""
    own = f"{method.upper()} {path}"
    return own if own in ROUTES else path
