"""Checks the heads of requests for what the parser lets pass, and words what it does not."""

from http import HTTPStatus

import httptools

from quire.server.config import HttpLimits
from quire.server.errors import RequestError

VERSIONS = ("1.0", "1.1")


def check_head(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Check a head. Raises RequestError for what the parser lets pass."""
    if version not in VERSIONS:
        raise RequestError(f"HTTP/{version} is not spoken here: use 1.1.", code="invalid_http")
    for name, value in headers:
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise RequestError(
                f"The Transfer-Encoding {value[:64].decode('latin-1')!r} is not supported: send "
                "the body as it is, 'chunked' or with a Content-Length.",
                code="invalid_http",
            )
    num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
        raise RequestError(
            f"The request has {num_hosts} Host headers: HTTP/1.1 wants one.", code="invalid_http"
        )


def parse_error(error: httptools.HttpParserError) -> RequestError:
    """Return the error for what the parser cannot take, or what a check within it has raised."""
    if isinstance(error.__context__, RequestError):
        return error.__context__
    return RequestError(f"The request is not valid HTTP/1.1: {error}.", code="invalid_http")


def head_too_large(limits: HttpLimits, *, is_url: bool) -> RequestError:
    """Return the error for a head, or a URL, that is larger than heads may be."""
    if is_url:
        return RequestError(
            f"The URL of the request is longer than {limits.max_head_bytes} bytes.",
            code="uri_too_long",
            status=HTTPStatus.REQUEST_URI_TOO_LONG,
        )
    return RequestError(
        f"The head of the request has more than {limits.max_head_bytes} bytes or "
        f"{limits.max_headers} header fields.",
        code="head_too_large",
        status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    )
