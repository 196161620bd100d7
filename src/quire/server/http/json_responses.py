"""JSON responses that are not streams."""

import msgspec
from starlette.responses import Response

from quire.server.errors import (
    RequestError,
    error_body,
    error_headers,
)

JSON = "application/json"


def json_response(
    body: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, headers=headers, media_type=JSON)


def error_response(error: RequestError) -> Response:
    """Return the response of OpenAI's error object."""
    return Response(
        error_body(error),
        status_code=error.status,
        headers=error_headers(error),
        media_type=JSON,
    )
