"""Descriptions of routes in the document of the API, in FastAPI's terms: `responses`, and the
bodies and parameters of `openapi_extra`."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec
from pydantic import BaseModel

from quire.server.config import BUNDLED_MODEL_NAME
from quire.server.errors import (
    NOT_FOUND,
    TOO_LARGE,
    TOO_LATE,
    TOO_MANY,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA,
)
from quire.server.http.json_responses import JSON
from quire.server.http.report_headers import IGNORED, WARNINGS
from quire.server.tenancy.rates import RATE_HEADERS, Rate

Node: TypeAlias = dict[str, object]
Responses: TypeAlias = dict[int | str, Node]
Examples: TypeAlias = Mapping[str, Mapping[str, object]]

OK = 200
EVENTS = "text/event-stream"
STREAMED = "The answer. With `stream`: events, an error that comes late among them."
READS_A_BODY = (TOO_LARGE, UNSUPPORTED_MEDIA, UNAVAILABLE)
"""Errors of the routes that read a body, beside those of all."""
TOKENIZES = (*READS_A_BODY, NOT_FOUND, TOO_MANY, TOO_LATE)
"""Errors of the routes that tokenize, whether or not they generate."""
CREATED_S = 1767225600
"""The time of examples."""
REPORT_HEADERS = (WARNINGS, IGNORED)
GENERATION_HEADERS = (*REPORT_HEADERS, "endpoint-load-metrics")

HEADERS: Mapping[str, str] = {
    "accept-encoding": "The encodings of a body that are accepted: none.",
    "allow": "The methods of this path.",
    "connection": "The connection is closed after this answer.",
    "endpoint-load-metrics": "The ORCA load report, where a completion or a chat asked for it.",
    "request-id": "The same as `x-request-id`, for Anthropic's clients.",
    "retry-after": "Seconds to wait before the request is sent again.",
    "traceparent": "The span of this request, where it came with a trace or is traced.",
    **{
        f"x-ratelimit-limit-{rate}": f"The {rate} a minute that the key may have, if it has a rate."
        for rate in Rate
    },
    **{f"x-ratelimit-remaining-{rate}": f"The {rate} that it may have now." for rate in Rate},
    **{
        f"x-ratelimit-reset-{rate}": f"The time until all these {rate} are left again, as `1m2s`."
        for rate in Rate
    },
    "www-authenticate": "How to bring an API key.",
    WARNINGS: "Parts of the request that were accepted and have no effect.",
    IGNORED: "Paths of unknown fields of the history that were left out of the prompt, and of "
    "keywords of schemas that are not enforced.",
    "x-request-id": "The id of the request in the server's log, and in `/v1/requests/{name}`.",
    "x-should-retry": "`false`: clients that send failed requests again should not send this one.",
}
"""Every header of an answer that the document tells of."""


class SchemaRef(dict[str, object]):
    """A reference to the schema of a type, by which the document finds the type."""

    def __init__(self, of: type[msgspec.Struct] | type[BaseModel]) -> None:
        super().__init__({"$ref": f"#/components/schemas/{of.__name__}"})
        self.of = of


def types_in(node: object) -> Iterator[type[msgspec.Struct] | type[BaseModel]]:
    """Yield the types whose schemas a part of the document refers to."""
    if isinstance(node, SchemaRef):
        yield node.of
    elif isinstance(node, dict):
        yield from types_in([*node.values()])
    elif isinstance(node, list):
        for each in node:
            yield from types_in(each)


def headers(*names: str) -> Node:
    """Return the headers of an answer; each has the id of its request."""
    return {
        name: {"description": HEADERS[name], "schema": {"type": "string"}}
        for name in ("x-request-id", "traceparent", *names)
    }


def responses(
    *answers: msgspec.Struct | Node,
    description: str = "The answer.",
    with_headers: tuple[str, ...] = (),
    errors: tuple[int, ...] = (),
) -> Responses:
    """Return the answers with status 200, each an instance that is shown as an example or content
    by its media type, and the errors that a route has beside those that every request may be
    answered with. The document describes errors once for all routes."""
    rates = RATE_HEADERS if TOO_MANY in errors else ()
    answer = response(*answers, description=description, with_headers=(*with_headers, *rates))
    return {OK: answer, **{status: {} for status in errors}}


def generation_responses(
    *answers: msgspec.Struct | Node, with_headers: tuple[str, ...] = ()
) -> Responses:
    """Return the answers of a route that generates: one body, or a stream of events."""
    named = (*GENERATION_HEADERS, *with_headers)
    return responses(*answers, description=STREAMED, with_headers=named, errors=TOKENIZES)


def response(
    *answers: msgspec.Struct | Node, description: str, with_headers: tuple[str, ...] = ()
) -> Node:
    """Return the answers with one status."""
    content: Node = {}
    for answer in answers:
        content |= json_content(answer) if isinstance(answer, msgspec.Struct) else answer
    return {"description": description, "headers": headers(*with_headers), "content": content}


def json_content(example: msgspec.Struct) -> Node:
    """Return an answer as JSON, with the schema of its type."""
    shown = msgspec.json.decode(msgspec.json.encode(example))
    return {JSON: {"schema": SchemaRef(type(example)), "example": shown}}


def text_content(example: str, media_type: str) -> Node:
    """Return an answer that is text."""
    return {media_type: {"schema": {"type": "string"}, "example": example}}


def event_content(example: str, *events: type[msgspec.Struct], has_done: bool = False) -> Node:
    """Return a stream of server-sent events with data of these types, after which `[DONE]` comes
    with `has_done`. The schema of one event is where OpenAPI 3.2 has it; FastAPI writes it in
    documents of 3.1 too."""
    body = {"anyOf": [SchemaRef(each) for each in events]}
    data: Node = {"type": "string", "contentMediaType": JSON, "contentSchema": body}
    done = {"const": "[DONE]", "description": "After the last event of a generation."}
    event = {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"anyOf": [done, data]} if has_done else data,
    }
    return {EVENTS: {"itemSchema": {"type": "object", "properties": event}, "example": example}}


def json_body(
    *models: type[BaseModel], examples: Examples | None = None, required: bool = True
) -> Node:
    """Return the body of a request, which is one of the models. The document adds the server's
    model to the examples."""
    references = [SchemaRef(each) for each in models]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    shown = {name: {"value": dict(value)} for name, value in (examples or {}).items()}
    content = {JSON: {"schema": schema, "examples": shown}}
    return {"requestBody": {"required": required, "content": content}}


def parameter(name: str, place: str, description: str, example: str, pattern: str = "") -> Node:
    """Return a parameter; `place` is OpenAPI's `in`."""
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": {"type": "string"} | ({"pattern": pattern} if pattern else {}),
        "example": example,
    }


LOAD_REPORT = parameter(
    "endpoint-load-metrics-format",
    "header",
    "`text` or `json`: the answer's head tells the load of the engine, for balancers.",
    "text",
)

MODEL_QUERY = parameter("model", "query", "The model, of several.", BUNDLED_MODEL_NAME)
ALL_KEYS = parameter(
    "all", "query", "`true`: those of all keys, for the admin key.", "false", "^(true|false)$"
)


def event_text(*bodies: msgspec.Struct, has_done: bool = True) -> str:
    """Return server-sent events with these bodies, as a stream of an answer is."""
    sent = [msgspec.json.encode(body).decode() for body in bodies]
    return "".join(f"data: {each}\n\n" for each in (*sent, *(("[DONE]",) if has_done else ())))
