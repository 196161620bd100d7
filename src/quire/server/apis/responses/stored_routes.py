"""Routes of stored responses, which belong to the key that asked for them."""

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import parameter, responses
from quire.server.apis.protocol.parse import unsupported
from quire.server.apis.responses import examples
from quire.server.apis.responses.lookup import input_item_id
from quire.server.apis.responses.protocol import Included, ItemList, ResponseDeleted
from quire.server.apis.responses.storage import ResponseStorage
from quire.server.apis.responses.store import ResponseStore, StoredResponse
from quire.server.apis.routing import BareRoute, state_of
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.http.endpoints import RESPONSES
from quire.server.http.json_responses import JSON, json_response
from quire.server.http.query import flag_of, is_newest_first, limit_of, page_of, query_of
from quire.server.http.report_headers import WARNINGS, report_headers
from quire.server.tenancy.tenants import arrival_of

MAX_INLINE_BYTES = 4 * 1024 * 1024
"""A larger response is encoded in a thread."""
MAX_SHOWN_CHARS = 128
ITEMS_LISTED, MAX_ITEMS_LISTED = 20, 100
_INCLUDE = ("include", "include[]")

_PATH = f"{RESPONSES}/{{name}}"
_NAME_PARAMETER = parameter("name", "path", "The id of the response.", examples.RESPONSE_ID)
_INCLUDE_PARAMETER = parameter(
    "include",
    "query",
    "Accepted without effect: a response keeps what it was asked with.",
    "message.output_text.logprobs",
    f"^({'|'.join(map(re.escape, get_args(Included)))})$",
)
router = APIRouter(tags=["Responses"], route_class=BareRoute)


@router.get(
    _PATH,
    summary="A stored response of one's own, as it is now.",
    responses=responses(examples.RESPONSE, with_headers=(WARNINGS,), errors=(NOT_FOUND,)),
    openapi_extra={
        "parameters": [
            _NAME_PARAMETER,
            _INCLUDE_PARAMETER,
            parameter("stream", "query", "`true` is refused.", "false", "^(true|false)$"),
        ]
    },
)
async def retrieve(request: Request) -> Response:
    known = ("stream", "starting_after", "include_obfuscation", *_INCLUDE)
    query = query_of(request, *known)
    for name in ("stream", "include_obfuscation"):
        if flag_of(query, name):
            raise unsupported(name, "of a stored response; ask for it until it has ended")
    if "starting_after" in query:
        raise unsupported("starting_after", "without a stream")
    return await _told(_own(request), _included(request))


@router.delete(
    _PATH,
    summary="Forget a stored response of one's own; one that runs ends.",
    responses=responses(ResponseDeleted(examples.RESPONSE_ID), errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME_PARAMETER]},
)
async def delete(request: Request) -> Response:
    query_of(request)
    response = _own(request)
    _store(request).remove(_owner(request), response.id)
    if response.run is not None:
        response.run.stop()
    return json_response(ResponseDeleted(response.id))


@router.post(
    f"{_PATH}/cancel",
    summary="End a response of one's own that runs in the background; what there is of it stays.",
    responses=responses(examples.RESPONSE, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME_PARAMETER]},
)
async def cancel(request: Request) -> Response:
    query_of(request)
    response = _own(request)
    if not response.body.background:
        raise RequestError(
            "Only a response that was asked for with 'background' can be cancelled; end the "
            "others by their connection.",
            code="not_in_background",
        )
    if response.run is not None:
        await response.run.cancel()
    return await _told(_own(request), {})


@router.get(
    f"{_PATH}/input_items",
    summary="The items of a stored response's own input.",
    responses=responses(examples.INPUT_ITEMS, with_headers=(WARNINGS,), errors=(NOT_FOUND,)),
    openapi_extra={
        "parameters": [
            _NAME_PARAMETER,
            _INCLUDE_PARAMETER,
            parameter("limit", "query", "So many items at most.", "20", "^([1-9][0-9]?|100)$"),
            parameter("after", "query", "The id of the item before the first.", examples.INPUT_ID),
            parameter("order", "query", "Newest first: `desc`; or `asc`.", "asc", "^(asc|desc)$"),
        ]
    },
)
async def input_items(request: Request) -> Response:
    query = query_of(request, "limit", "order", "after", *_INCLUDE)
    items = _listed(_own(request))
    if is_newest_first(query):
        items.reverse()
    page, has_more = page_of(items, query, limit_of(query, ITEMS_LISTED, MAX_ITEMS_LISTED))
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    body = ItemList(tuple(each.raw for each in page), first, last, has_more)
    return json_response(body, headers=dict(_included(request)))


def _store(request: Request) -> ResponseStore:
    return state_of(request, ResponseStorage).store


def _own(request: Request) -> StoredResponse:
    """Return the client's own response that the path names. Raises RequestError."""
    name, store = str(request.path_params["name"]), _store(request)
    found = store.find(_owner(request), name)
    if found is not None:
        return found
    off = "" if store.is_on else " (--response-store-bytes 0 stores none)"
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
    return report_headers(("accepted without effect: include",) if given else (), ())


async def _told(response: StoredResponse, headers: Mapping[str, str]) -> Response:
    body = response.now()
    if response.num_bytes <= MAX_INLINE_BYTES:
        encoded = msgspec.json.encode(body)
    else:
        encoded = await asyncio.to_thread(msgspec.json.encode, body)
    return Response(encoded, headers=dict(headers), media_type=JSON)


def _owner(request: Request) -> str:
    return arrival_of(request).tenant.name
