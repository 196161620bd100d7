"""Holds every answer that a test is given to the document of the API: its status, its media type
and its headers must be described for the route.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import httpx

from quire.server.apis.descriptions import HEADERS

UNROUTED = (404, 405, 426)
"""Statuses for a path or a method that there is not, and for a WebSocket."""
ANYWHERE_HEADERS = {"connection"}
"""Said by the HTTP layer too, with any answer."""


class Description(NamedTuple):
    """The media types and headers of one status of one route."""

    media_types: frozenset[str]
    headers: frozenset[str]


def responses(document: Mapping[str, object], operation: object) -> dict[int, Description]:
    """Every status of an operation, its references followed."""
    assert isinstance(operation, dict)
    found = {}
    for status, response in operation["responses"].items():
        whole = resolve(document, response)
        headers = whole.get("headers", {})
        content = whole["content"]
        assert isinstance(headers, dict) and isinstance(content, dict)
        found[int(status)] = Description(frozenset(content), frozenset(headers))
    return found


def resolve(document: Mapping[str, object], node: object) -> dict[str, object]:
    """The object that a reference leads to, or the object itself."""
    assert isinstance(node, dict)
    if "$ref" not in node:
        return node
    place: object = document
    for part in str(node["$ref"]).removeprefix("#/").split("/"):
        assert isinstance(place, dict)
        place = place[part]
    return resolve(document, place)


@cache
def _described(text: str) -> Mapping[tuple[str, str], Mapping[int, Description]]:
    document = httpx.Response(200, text=text).json()
    return {
        (method, path): responses(document, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }


def held_to_document(
    url: str, trust: ssl.SSLContext | bool = True
) -> Callable[[httpx.Response], None]:
    """A hook for a client of the server at `url`. Raises AssertionError for what its document does
    not tell of."""
    documents: list[str] = []

    def hold(response: httpx.Response) -> None:
        if not documents:
            found = httpx.get(f"{url}/openapi.json", verify=trust, timeout=60)
            documents.append(found.raise_for_status().text)
        _hold(response, _described(documents[0]))

    return hold


def _hold(
    response: httpx.Response, described: Mapping[tuple[str, str], Mapping[int, Description]]
) -> None:
    method = {"HEAD": "get"}.get(response.request.method, response.request.method.lower())
    target = response.request.url.path
    found = [
        statuses
        for (known, path), statuses in sorted(
            described.items(), key=lambda each: -len(re.sub(r"{\w+}", "", each[0][1]))
        )
        if known == method and re.fullmatch(re.sub(r"{\w+}", ".+", path), target)
    ]
    if not found:
        assert response.status_code in (*UNROUTED, 401) or target.startswith("/docs/")
        return
    what = f"{method} {target} -> {response.status_code}"
    assert response.status_code in found[0], f"{what} is not described"
    description = found[0][response.status_code]
    media_type = response.headers.get("content-type", "").partition(";")[0]
    assert media_type in description.media_types, f"{what}: {media_type} is not described"
    told = {name for name in HEADERS if name in response.headers} - ANYWHERE_HEADERS
    assert told <= description.headers, f"{what}: {told - description.headers} are not described"
