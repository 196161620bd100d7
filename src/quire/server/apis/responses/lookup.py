"""Finds what a request takes from the stored responses of its tenant."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from quire.server.apis.protocol.chat import MAX_MESSAGES
from quire.server.apis.responses.history import (
    History,
    HistoryNeeded,
    ItemName,
    not_stored,
    previous_not_stored,
)
from quire.server.apis.responses.store import ResponseStore, StoredResponse
from quire.server.errors import TOO_LARGE, RequestError

PREFIX = "resp"
_INPUT = "in"
_KINDS = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def input_item_id(response_id: str, kind: str, index: int) -> str:
    """Return the id of an item of an input that came without one."""
    suffix = response_id.removeprefix(PREFIX)
    return f"{_KINDS.get(kind, 'item')}{suffix}-{_INPUT}{index}"


class HistoryLookup(NamedTuple):
    """Looks up what one tenant has stored. A history has at most `max_bytes`, and no more items
    than an input may have."""

    store: ResponseStore
    owner: str
    max_bytes: int

    def find(self, needed: HistoryNeeded) -> History:
        """Return what a request needs. Raises RequestError for what is not stored."""
        if not self.store.is_on:
            raise store_is_off("previous_response_id" if needed.previous_id else "input")
        named = {name.id: self._item(name) for name in needed.names}
        if needed.previous_id is None:
            return History((), named)
        turns = [*self._turns(needed.previous_id)]
        keys = (turn.body.prompt_cache_key for turn, _ in turns)
        first, _ = turns[-1]
        return History(
            tuple(item for _, items in reversed(turns) for item in items),
            named,
            next((key for key in keys if key), first.id),
        )

    def _turns(self, previous_id: str) -> Iterator[tuple[StoredResponse, tuple[bytes, ...]]]:
        """Yield the response of this id with its items, and those before it, the first one last.
        Raises RequestError where the items are too many."""
        num_items = num_bytes = 0
        for response in self._chain(previous_id):
            items = (*response.input_items, *map(bytes, response.output_items))
            num_items += len(items)
            num_bytes += sum(map(len, items))
            if num_items > MAX_MESSAGES or num_bytes > self.max_bytes:
                raise RequestError(
                    f"What was said before has more than {MAX_MESSAGES} items, or more than "
                    f"{self.max_bytes} bytes (--max-body-bytes).",
                    param="previous_response_id",
                    code="request_too_large",
                    status=TOO_LARGE,
                )
            yield response, items

    def _chain(self, previous_id: str) -> Iterator[StoredResponse]:
        """Yield the response of this id, and those before it, the first one last."""
        name: str | None = previous_id
        while name is not None:
            found = self.store.find(self.owner, name)
            if found is None:
                raise previous_not_stored(previous_id, name)
            if found.run is not None:
                raise RequestError(
                    f"Previous response {name!r} has not ended.",
                    param="previous_response_id",
                    code="response_not_ended",
                )
            yield found
            name = found.body.previous_response_id

    def _item(self, name: ItemName) -> bytes:
        """Return a stored item; its id tells of which response it is, and where in it."""
        head, _, place = name.id.rpartition("-")
        _, _, suffix = head.rpartition("-")
        found = self.store.find(self.owner, f"{PREFIX}-{suffix}")
        items: Sequence[bytes | msgspec.Raw] = () if found is None else found.output_items
        if found is not None and place.startswith(_INPUT):
            place, items = place.removeprefix(_INPUT), found.input_items
        if not (place.isascii() and place.isdigit()) or int(place[:9]) >= len(items):
            raise not_stored(name)
        return bytes(items[int(place[:9])])


def store_is_off(field: str) -> RequestError:
    """Return the error for a field that asks for a store where there is none."""
    return RequestError(
        f"This server stores no responses (--response-store-bytes 0): it does not take '{field}'.",
        param=field,
        code="unsupported_parameter",
    )
