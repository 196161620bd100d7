"""Routes of the page at `/`: static files that need no key, under a policy that lets them load and
call nothing but this server."""

import re
from collections.abc import Awaitable, Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.app.page.entrance import Entrance
from quire.server.app.page.files import ICON, INDEX, PAGE_FOLDER, PageFile, read_page_files
from quire.server.http.compression import GZIP
from quire.server.http.json_responses import json_response
from quire.server.http.negotiation import takes

HTML = "text/html"
NOT_MODIFIED = 304
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The Content-Security-Policy. The last two have the browser refuse every piece of script that
would turn text into HTML."""
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
REVALIDATE = "no-cache"
"""A browser keeps the files, and asks by their ETag whether they are still the same: a newer server
never meets modules of an older one."""

Handler = Callable[[Request], Awaitable[Response]]


class PageRoutes:
    """Handlers of the page. Only files that were there at the start are served: no path of a
    request is ever looked up in a folder."""

    def __init__(self) -> None:
        self._files = read_page_files()

    def routes(self) -> Iterator[Route]:
        """Yield the routes of the application that these handlers serve."""
        yield Route("/", self.entrance, methods=["GET"])
        yield Route("/favicon.ico", _handler(self._files[ICON]), methods=["GET"])
        for name, file in self._files.items():
            if name != INDEX:
                yield Route(f"{PAGE_FOLDER}/{name}", _handler(file), methods=["GET"])

    async def entrance(self, request: Request) -> Response:
        """Answer with the page who names HTML in `Accept`, as browsers do, and with JSON who does
        not."""
        if takes(request.headers.get("accept", ""), HTML):
            return _answer(request, self._files[INDEX], vary="accept, accept-encoding")
        return json_response(Entrance(), headers={"vary": "accept"})


def _handler(file: PageFile) -> Handler:
    async def answer(request: Request) -> Response:
        return _answer(request, file, vary="accept-encoding")

    return answer


def _answer(request: Request, file: PageFile, *, vary: str) -> Response:
    """Return the file in the form that the client takes, or that the one it has is still right."""
    is_compressed = takes(request.headers.get("accept-encoding", ""), GZIP)
    etag = f'"{file.etag}-{GZIP}"' if is_compressed else f'"{file.etag}"'
    headers = {"etag": etag, "cache-control": REVALIDATE, "vary": vary, **SECURITY_HEADERS}
    if _has(request.headers.get("if-none-match", ""), etag):
        return Response(status_code=NOT_MODIFIED, headers=headers)
    if is_compressed:
        headers["content-encoding"] = GZIP
    body = file.compressed if is_compressed else file.plain
    return Response(body, headers=headers, media_type=file.media_type)


def _has(if_none_match: str, etag: str) -> bool:
    """Return whether the client has what this ETag names (RFC 9110, 13.1.2)."""
    return if_none_match.strip() == "*" or etag in re.findall(r'"[^"]*"', if_none_match)
