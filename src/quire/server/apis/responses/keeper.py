"""Keeps the response of one request in the store of its tenant."""

from typing import NamedTuple

import msgspec

from quire.server.apis.responses.expiry import ExpiryTimer
from quire.server.apis.responses.protocol import ResponseBody
from quire.server.apis.responses.store import ResponseRun, ResponseStore, stored_response
from quire.server.apis.responses.writer import ItemWriter


class ResponseKeeper(NamedTuple):
    """Keeps what `writer` writes for `owner`, with the items of the input."""

    store: ResponseStore
    timer: ExpiryTimer
    owner: str
    input_items: tuple[bytes, ...]
    writer: ItemWriter

    def keep(self, body: ResponseBody) -> None:
        """Keep a response that has ended, if there is room for it."""
        whole = self.writer.whole_body or msgspec.json.encode(body)
        self._put(body, len(whole), None)

    def keep_running(self, run: ResponseRun) -> bool:
        """Keep a response that runs without a connection; return False if there is no room."""
        return self._put(run.body(), len(msgspec.json.encode(run.body())), run)

    def keep_ended(self, body: ResponseBody) -> None:
        """Keep the end of a response that ran, unless it was deleted meanwhile."""
        if self.store.find(self.owner, body.id) is not None:
            self.keep(body)

    def _put(self, body: ResponseBody, num_bytes: int, run: ResponseRun | None) -> bool:
        items = self.writer.items
        stored = stored_response(body, self.input_items, items, num_bytes, run)
        self.timer.start()
        return self.store.put(self.owner, stored)
