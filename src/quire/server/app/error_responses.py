"""Errors as responses, each in the shape of the API that was asked."""

import msgspec
from starlette.responses import Response

from quire.server.apis.anthropic.errors import is_of_messages, message_error
from quire.server.errors import RequestError, error_body, error_headers
from quire.server.http.json_responses import JSON


def error_response(error: RequestError, path: str, request_id: str) -> Response:
    """Return the response of an error in the shape of the API that the path is of."""
    is_message = is_of_messages(path)
    return Response(
        msgspec.json.encode(message_error(error, request_id)) if is_message else error_body(error),
        status_code=error.status,
        headers=error_headers(error),
        media_type=JSON,
    )
