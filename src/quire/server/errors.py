"""The errors that requests are answered with, in one form on the wire: OpenAI's error object."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

BAD_REQUEST = 400
UNAUTHORIZED = 401
FORBIDDEN = 403
NOT_FOUND = 404
TOO_SLOW = 408
CONFLICT = 409
TOO_LARGE = 413
UNSUPPORTED_MEDIA = 415
UPGRADE_REQUIRED = 426
TOO_MANY = 429
SERVER_ERROR = 500
UNAVAILABLE = 503
TOO_LATE = 504


class RequestError(Exception):
    """An error that a request is answered with: a sentence, the field at fault (`param`), a code
    for programs, the HTTP status, and in how many seconds to try again."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_value",
        status: int = BAD_REQUEST,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


class ContextLengths(NamedTuple):
    """The tokens of the context, and of the prompt, at least so many where it `is_least`."""

    most: int
    prompt: int
    is_least: bool = False


UNKNOWN_LENGTHS = ContextLengths(0, 0)
"""The lengths of an error that is being unpickled, until its own are set."""


class ContextTooLong(RequestError):
    """Prompt and output do not fit the context. APIs that have words of their own for it make them
    of `lengths`."""

    def __init__(
        self, message: str, *, param: str | None = None, lengths: ContextLengths = UNKNOWN_LENGTHS
    ) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.lengths = lengths


MIN_RETRY_S, UNKNOWN_RETRY_S, MAX_RETRY_S = 1, 2, 600


def retry_after_s(wait_s: float | None) -> int:
    """Return `Retry-After` in whole seconds where there is room in `wait_s`; None: not known."""
    if wait_s is None:
        return UNKNOWN_RETRY_S
    return max(MIN_RETRY_S, min(math.ceil(wait_s), MAX_RETRY_S))


class Overloaded(RequestError):
    """The waiting queue is full: for everyone, or for a tenant that has its share of it."""

    def __init__(
        self,
        message: str,
        wait_s: float | None,
        *,
        code: str = "server_overloaded",
        status: int = UNAVAILABLE,
    ) -> None:
        super().__init__(message, code=code, status=status, retry_after_s=retry_after_s(wait_s))


class ModelLoading(RequestError):
    """The engine or the tokenizer is not there yet."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="model_loading", status=UNAVAILABLE, retry_after_s=5)


class EngineGone(RequestError):
    """The engine process has ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_down", status=UNAVAILABLE, retry_after_s=10)


class Quarantined(RequestError):
    """The request crashes the engine, and is not run again."""

    def __init__(self) -> None:
        super().__init__(
            "The request crashed the engine again and again, alone at last: it is not run again.",
            code="request_crashes_engine",
            status=SERVER_ERROR,
        )


class DeadlineExceeded(RequestError):
    """The time that the client gave has passed, or would have."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(
            message,
            param="deadline_ms",
            code="deadline_exceeded",
            status=TOO_LATE,
            retry_after_s=None if wait_s is None else retry_after_s(wait_s),
        )


class ShuttingDown(RequestError):
    """The server drains; another replica should be asked."""

    def __init__(self, message: str = "The server is shutting down.") -> None:
        super().__init__(message, code="shutting_down", status=UNAVAILABLE, retry_after_s=5)


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


_TYPES: Mapping[int, str] = {
    BAD_REQUEST: "invalid_request_error",
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    TOO_MANY: "rate_limit_error",
    UNAVAILABLE: "service_unavailable_error",
}


def error_type(status: int) -> str:
    fallback = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    return _TYPES.get(status, fallback)


def error_body(error: RequestError) -> bytes:
    detail = ErrorDetail(error.message, error_type(error.status), error.param, error.code)
    return msgspec.json.encode(ErrorBody(detail))


def error_headers(error: RequestError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if error.status == TOO_LATE:
        headers["x-should-retry"] = "false"  # OpenAI's clients would ask again, past the deadline
    if error.status == TOO_SLOW:
        headers["connection"] = "close"  # what is still to come is no request
    if error.status == UNSUPPORTED_MEDIA:
        headers["accept-encoding"] = "identity"
    if error.status == UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return headers
