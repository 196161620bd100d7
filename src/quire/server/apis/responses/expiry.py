"""Drops what a store has kept long enough, soon after its time."""

import asyncio

from quire.server.apis.responses.store import ResponseStore


class ExpiryTimer:
    """Runs while something is kept; `start` it when something is stored."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._handle is None:
            self._after(self._store.limits.kept_s)

    def _after(self, wait_s: float) -> None:
        self._handle = asyncio.get_running_loop().call_later(wait_s, self._drop)

    def _drop(self) -> None:
        self._handle = None
        wait_s = self._store.drop_expired()
        if wait_s is not None:
            self._after(wait_s)
