"""Routes of stored responses, which belong to the key that asked for them."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.protocol.parse import unsupported
from quire.server.apis.responses.lookup import input_item_id
from quire.server.apis.responses.protocol import Included, ItemList, ResponseDeleted
from quire.server.apis.responses.store import ResponseStore, StoredResponse
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.http.endpoints import RESPONSES
from quire.server.http.json_responses import JSON, json_response
from quire.server.http.query import flag_of, is_newest_first, limit_of, page_of, query_of
from quire.server.tenancy.tenants import arrival_of

MAX_INLINE_BYTES = 4 * 1024 * 1024
"""A larger response is encoded in a thread."""
MAX_SHOWN_CHARS = 128
ITEMS_LISTED, MAX_ITEMS_LISTED = 20, 100
_INCLUDE = ("include", "include[]")


class StoredRoutes:
    """Handlers of stored responses."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        path = f"{RESPONSES}/{{name}}"
        return (
            Route(path, self.retrieve, methods=["GET", "DELETE"]),
            Route(f"{path}/cancel", self.cancel, methods=["POST"]),
            Route(f"{path}/input_items", self.input_items, methods=["GET"]),
        )

    async def retrieve(self, request: Request) -> Response:
        if request.method == "DELETE":
            return self._delete(request)
        known = ("stream", "starting_after", "include_obfuscation", *_INCLUDE)
        query = query_of(request, *known)
        for name in ("stream", "include_obfuscation"):
            if flag_of(query, name):
                raise unsupported(name, "of a stored response; ask for it until it has ended")
        if "starting_after" in query:
            raise unsupported("starting_after", "without a stream")
        return await _told(self._own(request), _included(request))

    def _delete(self, request: Request) -> Response:
        """Forget a response, and end it where it runs."""
        query_of(request)
        response = self._own(request)
        self._store.remove(_owner(request), response.id)
        if response.run is not None:
            response.run.stop()
        return json_response(ResponseDeleted(response.id))

    async def cancel(self, request: Request) -> Response:
        """End a response that runs without a connection; one that has ended stays as it is."""
        query_of(request)
        response = self._own(request)
        if not response.body.background:
            raise RequestError(
                "Only a response that was asked for with 'background' can be cancelled; end the "
                "others by their connection.",
                code="not_in_background",
            )
        if response.run is not None:
            await response.run.cancel()
        return await _told(self._own(request), {})

    async def input_items(self, request: Request) -> Response:
        """Answer with a page of the items of the response's own input."""
        query = query_of(request, "limit", "order", "after", *_INCLUDE)
        items = _listed(self._own(request))
        if is_newest_first(query):
            items.reverse()
        page, has_more = page_of(items, query, limit_of(query, ITEMS_LISTED, MAX_ITEMS_LISTED))
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        body = ItemList(tuple(each.raw for each in page), first, last, has_more)
        return json_response(body, headers=dict(_included(request)))

    def _own(self, request: Request) -> StoredResponse:
        """Return the client's own response that the path names. Raises RequestError."""
        name = str(request.path_params["name"])
        found = self._store.find(_owner(request), name)
        if found is not None:
            return found
        off = "" if self._store.is_on else " (--response-store-bytes 0 stores none)"
        raise RequestError(
            f"No response {name[:MAX_SHOWN_CHARS]!r} of yours is stored{off}.",
            code="response_not_found",
            status=NOT_FOUND,
        )


class _ListedItem(NamedTuple):
    id: str
    raw: msgspec.Raw


class _Named(msgspec.Struct):
    type: str
    id: str | None = None


_decode_named = msgspec.json.Decoder(_Named).decode


def _listed(response: StoredResponse) -> list[_ListedItem]:
    """Return the items of an input, each with an id."""
    return [_listed_item(response.id, each, i) for i, each in enumerate(response.input_items)]


def _listed_item(response_id: str, raw: bytes, index: int) -> _ListedItem:
    named = _decode_named(raw)
    if named.id is not None:
        return _ListedItem(named.id, msgspec.Raw(raw))
    name = input_item_id(response_id, named.type, index)
    return _ListedItem(name, msgspec.Raw(b'{"id":' + msgspec.json.encode(name) + b"," + raw[1:]))


def _included(request: Request) -> Mapping[str, str]:
    """Return the header that says what `include` does not change. Raises RequestError for what is
    none of its values."""
    given = [each for name in _INCLUDE for each in request.query_params.getlist(name)]
    for each in given:
        if each not in get_args(Included):
            known = " or ".join(get_args(Included))
            shown = each[:MAX_SHOWN_CHARS]
            raise RequestError(f"'include' is {shown!r}, must be {known}.", param="include")
    return {"x-quire-warnings": "accepted without effect: include"} if given else {}


async def _told(response: StoredResponse, headers: Mapping[str, str]) -> Response:
    body = response.now()
    if response.num_bytes <= MAX_INLINE_BYTES:
        encoded = msgspec.json.encode(body)
    else:
        encoded = await asyncio.to_thread(msgspec.json.encode, body)
    return Response(encoded, headers=dict(headers), media_type=JSON)


def _owner(request: Request) -> str:
    return arrival_of(request).tenant.name
