"""Errors in Anthropic's shape, for the routes of its API."""

from collections.abc import Mapping

import msgspec

from quire.server.errors import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_FOUND,
    SERVER_ERROR,
    TOO_LARGE,
    TOO_LATE,
    TOO_MANY,
    TOO_SLOW,
    UNAUTHORIZED,
    UNAVAILABLE,
    ContextTooLong,
    RequestError,
)

ROOT = "/v1/messages"
_TYPES: Mapping[int, str] = {
    BAD_REQUEST: "invalid_request_error",
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    TOO_SLOW: "timeout_error",
    TOO_LARGE: "request_too_large",
    TOO_MANY: "rate_limit_error",
    UNAVAILABLE: "overloaded_error",
    TOO_LATE: "timeout_error",
}


class MessageErrorDetails(msgspec.Struct, frozen=True):
    """The code for programs, and the path of the field at fault."""

    error_code: str
    param: str | None


class MessageErrorDetail(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: MessageErrorDetails


class MessageError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """An error in Anthropic's shape."""

    error: MessageErrorDetail
    request_id: str


def is_of_messages(path: str) -> bool:
    """Return whether a path is of Anthropic's API."""
    return path == ROOT or path.startswith(f"{ROOT}/")


def message_error(error: RequestError, request_id: str) -> MessageError:
    """Return an error in Anthropic's shape."""
    fallback = "api_error" if error.status >= SERVER_ERROR else "invalid_request_error"
    details = MessageErrorDetails(error.code, error.param)
    detail = MessageErrorDetail(_TYPES.get(error.status, fallback), _message(error), details)
    return MessageError(detail, request_id)


def _message(error: RequestError) -> str:
    """Return what is wrong: of what does not fit the context in Anthropic's words, which agents
    look for, and ask for less."""
    if not isinstance(error, ContextTooLong):
        return error.message
    most, prompt, is_least = error.lengths
    least = "at least " if is_least else ""
    return f"prompt is too long: {least}{prompt} tokens > {most} maximum"
