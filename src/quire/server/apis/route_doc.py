"""Descriptions of routes in the document of the API, and what several of them share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from quire.server.errors import (
    NOT_FOUND,
    TOO_LARGE,
    TOO_LATE,
    TOO_MANY,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA,
)
from quire.server.http.json_responses import JSON


class ResponseDoc(NamedTuple):
    """An answer that is not an error. Text stands for itself; a body is shown as its type's
    schema, with itself as the example. `events` are the types of a stream's data, after which
    `[DONE]` comes with `has_done`."""

    example: msgspec.Struct | Mapping[str, object] | str
    media_type: str = JSON
    description: str = "The answer."
    events: tuple[type[msgspec.Struct], ...] = ()
    has_done: bool = True


class Parameter(NamedTuple):
    """A parameter in the path or in a header; `place` is OpenAPI's `in`."""

    name: str
    place: str
    description: str
    example: str
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class RouteDoc:
    """`responses` by status; `errors` are the statuses that the route has beside those that every
    request may be answered with; `requests` are bodies by name; `headers` come with the answers.
    `form` is the schema of a body that is a form."""

    summary: str
    responses: Mapping[int, tuple[ResponseDoc, ...]]
    errors: tuple[int, ...] = ()
    requests: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    headers: tuple[str, ...] = ()
    body_required: bool = True
    form: Mapping[str, object] | None = None


EVENTS = "text/event-stream"
OK = 200
STREAMED = "With `stream`: events, an error that comes late among them."
READS_A_BODY = (TOO_LARGE, UNSUPPORTED_MEDIA, UNAVAILABLE)
"""Errors of the routes that read a body, beside those of all."""
TOKENIZES = (*READS_A_BODY, NOT_FOUND, TOO_MANY, TOO_LATE)
GENERATES = TOKENIZES
LOAD_REPORT = Parameter(
    "endpoint-load-metrics-format",
    "header",
    "`text` or `json`: the answer's head tells the load of the engine, for balancers.",
    "text",
)
CREATED_S = 1767225600
"""The time of examples."""


def ok(*responses: ResponseDoc) -> Mapping[int, tuple[ResponseDoc, ...]]:
    """Return the answers of a route that has no others but errors."""
    return {OK: responses}


def events(*bodies: msgspec.Struct, done: bool = True) -> str:
    """Return server-sent events with these bodies, as a stream of an answer is."""
    sent = [msgspec.json.encode(body).decode() for body in bodies]
    return "".join(f"data: {each}\n\n" for each in (*sent, *(("[DONE]",) if done else ())))
