"""The table of every error status: when it is answered, with which headers, and an example."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from quire.server.apis.anthropic.errors import MessageError, is_of_messages, message_error
from quire.server.apis.descriptions import headers
from quire.server.errors import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    SERVER_ERROR,
    TOO_LARGE,
    TOO_MANY,
    TOO_SLOW,
    UNAUTHORIZED,
    UNSUPPORTED_MEDIA,
    DeadlineExceeded,
    ErrorBody,
    ModelLoading,
    Overloaded,
    RequestError,
    error_body,
    error_headers,
)
from quire.server.http.json_responses import JSON
from quire.server.tenancy.rates import RATE_HEADERS

NO_SUCH_METHOD = 405
TARGET_TOO_LONG = 414
HEAD_TOO_LARGE = 431

ANYWHERE = (BAD_REQUEST, FORBIDDEN, TOO_SLOW, TARGET_TOO_LONG, HEAD_TOO_LARGE, SERVER_ERROR)
"""Errors that any request may be answered with, whatever it asks for."""


class ErrorDoc(NamedTuple):
    """`example` is one of the errors that are answered with the status."""

    description: str
    example: RequestError


def _error(description: str, example: RequestError) -> tuple[int, ErrorDoc]:
    return example.status, ErrorDoc(description, example)


ERROR_DOCS: Mapping[int, ErrorDoc] = dict(
    (
        _error(
            "The body, one of its fields or the request itself is wrong; `param` is the path of "
            "the field at fault.",
            RequestError(
                "Invalid 'temperature': Input should be less than or equal to 2.",
                param="temperature",
            ),
        ),
        _error(
            "The server has API keys, and the request brings none of them.",
            RequestError(
                "Missing or wrong API key: send it as 'Authorization: Bearer KEY' or as "
                "'X-API-Key: KEY', and where both are sent the same in both.",
                code="invalid_api_key",
                status=UNAUTHORIZED,
            ),
        ),
        _error(
            "The `Origin` or the `Host` of the request is not one that this server answers to, or "
            "what it asks for wants the admin key.",
            RequestError(
                "The origin 'https://example.com' is not allowed.",
                code="origin_not_allowed",
                status=FORBIDDEN,
            ),
        ),
        _error(
            "There is no such model, request or path, or it is switched off.",
            RequestError(
                "The model 'gpt-4' does not exist; this server has quire-bundled.",
                param="model",
                code="model_not_found",
                status=NOT_FOUND,
            ),
        ),
        _error(
            "The path has other methods; `Allow` names them.",
            RequestError("Method Not Allowed", code="method_not_allowed", status=NO_SUCH_METHOD),
        ),
        _error(
            "The model is still used, so that it is not unloaded; or it has no flight record now.",
            RequestError(
                "Requests still use the model after 30 s (--shutdown-timeout): it stays loaded.",
                code="model_in_use",
                status=CONFLICT,
            ),
        ),
        _error(
            "The head or the body of the request did not come in time.",
            RequestError(
                "The body comes too slowly: 4096 bytes so far, and less than 1024 a second in the "
                "last 30 s.",
                code="request_timeout",
                status=TOO_SLOW,
            ),
        ),
        _error(
            "The body is larger than `--max-body-bytes`.",
            RequestError(
                "The request body is larger than 8388608 bytes, the limit of this server.",
                code="request_too_large",
                status=TOO_LARGE,
            ),
        ),
        _error(
            "The URL of the request is too long.",
            RequestError(
                "The URL of the request is longer than 65536 bytes.",
                code="uri_too_long",
                status=TARGET_TOO_LONG,
            ),
        ),
        _error(
            "The body is compressed; send it as it is.",
            RequestError(
                "The request body has the Content-Encoding 'gzip'; send it uncompressed.",
                code="unsupported_content_encoding",
                status=UNSUPPORTED_MEDIA,
            ),
        ),
        _error(
            "The API key has its share of the waiting queue, or has had all that its rates let it "
            "have.",
            Overloaded(
                "The server is full: 256 requests of this tenant wait.",
                2,
                code="rate_limit_exceeded",
                status=TOO_MANY,
            ),
        ),
        _error(
            "The head of the request is too large.",
            RequestError(
                "The head of the request has more than 65536 bytes or 256 header fields.",
                code="head_too_large",
                status=HEAD_TOO_LARGE,
            ),
        ),
        _error(
            "The server is at fault; its log has the request.",
            RequestError(
                "Internal error; the server's log has request req-0123456789abcdef01234567.",
                code="internal",
                status=SERVER_ERROR,
            ),
        ),
        _error(
            "No request can be taken now: the queue or the memory for bodies is full, the model is "
            "loading, or the server is shutting down or has lost its engine.",
            ModelLoading("The model is loading: weights 1/2."),
        ),
        _error(
            "The `deadline_ms` of the request has passed, or cannot be kept; with `Retry-After` "
            "where it could be kept with less ahead.",
            DeadlineExceeded(
                "It takes 4.1 s at least, 3.8 s for 9120 tokens of prompts ahead of it, 0.3 s for "
                "700 of its own prompt; the time limit is 2 s.",
                2.1,
            ),
        ),
    )
)


def _headers_of(status: int, error: RequestError) -> tuple[str, ...]:
    with_a_key = () if status == UNAUTHORIZED else ("endpoint-load-metrics", *RATE_HEADERS)
    methods = ("allow",) if status == NO_SUCH_METHOD else ()
    return (*error_headers(error), *with_a_key, *methods)


class ErrorShape(NamedTuple):
    """The form in which an API has its errors; `prefix` begins the names of its responses."""

    prefix: str
    body: type[msgspec.Struct]
    encode: Callable[[RequestError], bytes]
    headers: tuple[str, ...] = ()


_OPENAI = ErrorShape("", ErrorBody, error_body)
_ANTHROPIC = ErrorShape(
    "Message",
    MessageError,
    lambda error: msgspec.json.encode(message_error(error, "req-0123456789abcdef01234567")),
    ("request-id",),
)
SHAPES = (_OPENAI, _ANTHROPIC)


def shape_of(path: str) -> ErrorShape:
    """Return the form of the errors of a path."""
    return _ANTHROPIC if is_of_messages(path) else _OPENAI


def response_name(status: int, shape: ErrorShape = _OPENAI) -> str:
    """Return the name of the status among the shared responses of the document, as `BadRequest`."""
    phrase = HTTPStatus(status).phrase
    return shape.prefix + "".join(character for character in phrase if character.isalpha())


def error_responses(shape: ErrorShape, error_schema: Mapping[str, object]) -> dict[str, object]:
    """Return the shared responses of the document that have a form, by their names."""
    return {
        response_name(status, shape): {
            "description": answer.description,
            "headers": headers(*_headers_of(status, answer.example), *shape.headers),
            "content": {
                JSON: {
                    "schema": error_schema,
                    "example": msgspec.json.decode(shape.encode(answer.example)),
                }
            },
        }
        for status, answer in ERROR_DOCS.items()
    }
