"""JSON replies that are not streams, and the body of a request, read with a limit."""

import asyncio

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quire.server.errors import (
    TOO_LARGE,
    TOO_SLOW,
    UNSUPPORTED_MEDIA,
    RequestError,
    ShuttingDown,
    error_body,
    error_headers,
)

JSON = "application/json"
BODY_PATIENCE_S = 30.0
MAX_SHOWN_CHARS = 128


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


async def read_body(request: Request, max_bytes: int, cut_off: asyncio.Future[None]) -> bytes:
    """The whole body. One that is too large is refused before all of it has come; one of which
    nothing comes for long, or that has not come when the server must stop, is waited for no longer;
    one that is compressed is not read.
    """
    reading = asyncio.ensure_future(_read(request, max_bytes))

    def stop(_: asyncio.Future[None]) -> None:
        reading.cancel()

    cut_off.add_done_callback(stop)
    try:
        return await reading
    except asyncio.CancelledError:
        if cut_off.done():
            raise ShuttingDown from None
        raise
    finally:
        cut_off.remove_done_callback(stop)
        reading.cancel()


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body, parts = bytearray(), request.stream()
    try:
        while part := await asyncio.wait_for(anext(parts), BODY_PATIENCE_S):
            body += part
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except TimeoutError:
        raise RequestError(
            f"Nothing came of the body for {BODY_PATIENCE_S:g} s, after {len(body)} bytes.",
            code="request_timeout",
            status=TOO_SLOW,
        ) from None
    except ClientDisconnect:
        raise RequestError("The client went away while it sent the body.") from None
    _refuse_compressed(request)
    return bytes(body)


def _refuse_compressed(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            f"The request body has the Content-Encoding {encoding[:MAX_SHOWN_CHARS]!r}; send it "
            "uncompressed.",
            code="unsupported_content_encoding",
            status=UNSUPPORTED_MEDIA,
        )


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"The request body is larger than {max_bytes} bytes, the limit of this server.",
        code="request_too_large",
        status=TOO_LARGE,
    )
