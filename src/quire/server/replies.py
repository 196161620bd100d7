"""JSON replies that are not streams, and the body of a request, read with a limit."""

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quire.server.errors import TOO_LARGE, RequestError, error_body, error_headers

JSON = "application/json"


def json_reply(
    body: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, headers=headers, media_type=JSON)


def error_reply(error: RequestError) -> Response:
    return Response(
        error_body(error),
        status_code=error.status,
        headers=error_headers(error),
        media_type=JSON,
    )


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body; one that is too large is refused before all of it has come."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise RequestError("The client went away while it sent the body.") from None
    return bytes(body)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"The request body is larger than {max_bytes} bytes, the limit of this server.",
        code="request_too_large",
        status=TOO_LARGE,
    )
