"""Routes of the page at `/`: static files that need no key, under a policy that lets them load and
call nothing but this server."""

import re

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import parameter, responses, text_content
from quire.server.apis.routing import BareRoute
from quire.server.app.page.entrance import Entrance
from quire.server.app.page.files import ICON, INDEX, PAGE_FOLDER, PageFile, read_page_files
from quire.server.errors import NOT_FOUND
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

router = APIRouter(tags=["Page"], route_class=BareRoute)


@router.get(
    "/",
    summary="The page, for a browser; for a program, where to go on.",
    responses=responses(
        Entrance(),
        text_content("<!DOCTYPE html>", HTML),
        description="Without `text/html` in `Accept`. With it, unless the server has `--no-page`.",
    ),
    openapi_extra={
        "parameters": [parameter("accept", "header", "The forms that are taken.", HTML)]
    },
)
async def entrance(request: Request) -> Response:
    if takes(request.headers.get("accept", ""), HTML):
        return _answer(request, read_page_files()[INDEX], vary="accept, accept-encoding")
    return json_response(Entrance(), headers={"vary": "accept"})


@router.get(
    "/favicon.ico",
    summary="The icon of the page.",
    responses=responses(text_content("<svg></svg>", "image/svg+xml")),
)
async def icon(request: Request) -> Response:
    return _answer(request, read_page_files()[ICON], vary="accept-encoding")


@router.get(f"{PAGE_FOLDER}/{{name}}", include_in_schema=False)
async def page_file(request: Request) -> Response:
    # Only files that were there at the start are served: no path is looked up in a folder.
    name = request.path_params["name"]
    if name == INDEX or name not in read_page_files():
        raise HTTPException(NOT_FOUND)
    return _answer(request, read_page_files()[name], vary="accept-encoding")


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
