"""A request takes from stored responses the items of those before it, and items that it names by
their ids. The store is not where requests are parsed, so that one that needs it says so, and is
parsed again with what it needs."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from pydantic_core import from_json

from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.errors import RequestError

REFERENCE = "item_reference"
MAX_SHOWN_CHARS = 128


class History(msgspec.Struct, frozen=True):
    """The items of stored responses that a request goes on from, as JSON in their order, and by
    their ids those that it names. `session` names the conversation of these responses: the latest
    `prompt_cache_key`, or the id of the first."""

    items: tuple[bytes, ...] = ()
    named: dict[str, bytes] = {}
    session: str = ""


class ContinuedBody(msgspec.Struct, frozen=True):
    """The body of a request with its history."""

    body: bytes
    history: History


NO_HISTORY = History()
encode_continued = msgspec.msgpack.Encoder().encode
decode_continued = msgspec.msgpack.Decoder(ContinuedBody).decode


class ItemName(NamedTuple):
    """The id of an item, and the path of the field that names it."""

    id: str
    where: str


class HistoryNeeded(RequestError):
    """The request goes on from the response `previous_id`, or names stored items. Where there is no
    store, it is the error."""

    def __init__(self, previous_id: str | None, names: tuple[ItemName, ...]) -> None:
        where = "previous_response_id" if previous_id is not None else names[0].where
        super().__init__(f"Invalid '{where}': nothing is stored here.", param=where)
        self.previous_id = previous_id
        self.names = names

    def __reduce__(self) -> tuple[type["HistoryNeeded"], tuple[object, ...]]:
        return HistoryNeeded, (self.previous_id, self.names)


def needed_history(request: ResponsesRequest) -> HistoryNeeded | None:
    """Return what a request needs of the store, None for nothing."""
    items = request.input if isinstance(request.input, list) else []
    names = []
    for index, item in enumerate(items):
        if item.get("type") == REFERENCE:
            path, name = f"input[{index}].id", item.get("id")
            if not isinstance(name, str):
                raise RequestError(f"Invalid '{path}': must be a string.", param=path)
            names.append(ItemName(name, path))
    if request.previous_response_id is None and not names:
        return None
    return HistoryNeeded(request.previous_response_id, tuple(names))


def not_stored(name: ItemName) -> RequestError:
    """Return the error for an item that is named and not stored."""
    shown = name.id[:MAX_SHOWN_CHARS]
    return RequestError(
        f"Invalid '{name.where}': no item {shown!r} of yours is stored.",
        param=name.where,
        code="item_not_found",
    )


def previous_not_stored(previous_id: str, missing: str) -> RequestError:
    """Return the error for a response to go on from that is not stored, or one before it."""
    shown = repr(previous_id[:MAX_SHOWN_CHARS])
    which = shown if missing == previous_id else f"{missing!r}, which {shown} goes on from,"
    return RequestError(
        f"Previous response {which} is not stored: it expired, was deleted, or is not yours.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def read_item(raw: bytes) -> dict[str, object]:
    """Return a stored item."""
    item = from_json(raw)
    assert isinstance(item, dict)
    return item


def with_named(
    items: list[dict[str, object]], named: Mapping[str, bytes]
) -> list[dict[str, object]]:
    """Return the items of an input with the stored ones in place of those that name them."""
    return [
        read_item(named[str(item["id"])]) if item.get("type") == REFERENCE else item
        for item in items
    ]
