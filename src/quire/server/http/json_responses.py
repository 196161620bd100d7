"""JSON responses that are not streams."""

import msgspec
from starlette.responses import Response

JSON = "application/json"


def json_response(
    body: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, headers=headers, media_type=JSON)
