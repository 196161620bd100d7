"""The types that say what the document of the API tells of a route."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

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
