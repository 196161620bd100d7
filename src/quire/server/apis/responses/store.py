"""The responses that are kept in memory, each for the tenant that asked for it alone. A restart
loses them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from quire.server.apis.responses.protocol import ResponseBody
from quire.server.observability.metrics import Eviction, ResponseCounts

OVERHEAD_BYTES = 1024
"""The memory of a response beside its JSON is about so much."""
MAX_DROPPED = 1000
"""Expired responses that are dropped in one iteration of the event loop."""


class ResponseStoreLimits(NamedTuple):
    """The bytes that one tenant may keep, 0 for no store, and the seconds that a response is kept
    after it was last asked for."""

    max_bytes: int
    kept_s: float


class ResponseRun(Protocol):
    """The run of a response without a connection."""

    def body(self) -> ResponseBody:
        """Return the response as it is now."""

    def stop(self) -> None:
        """End the run at once, and keep nothing of it."""

    async def cancel(self) -> None:
        """End the run, and wait until it has."""


class StoredResponse(NamedTuple):
    """A response: its object, and the JSON of each item of its input and of its output. `run` is
    there while it runs without a connection: its object is not final then."""

    body: ResponseBody
    input_items: tuple[bytes, ...]
    output_items: tuple[msgspec.Raw, ...]
    num_bytes: int
    run: ResponseRun | None = None

    @property
    def id(self) -> str:
        return self.body.id

    def now(self) -> ResponseBody:
        """Return its object as it is now."""
        return self.body if self.run is None else self.run.body()


def stored_response(
    body: ResponseBody,
    input_items: tuple[bytes, ...],
    output_items: tuple[msgspec.Raw, ...],
    num_body_bytes: int,
    run: ResponseRun | None = None,
) -> StoredResponse:
    """Return a response with all that it takes in memory."""
    num_bytes = OVERHEAD_BYTES + num_body_bytes + sum(map(len, input_items))
    return StoredResponse(body, input_items, output_items, num_bytes, run)


class _Kept(NamedTuple):
    response: StoredResponse
    used_s: float


class ResponseStore:
    """Keeps responses within limits. Of one tenant's that which was not asked for the longest makes
    room for another; those that run stay."""

    def __init__(
        self, limits: ResponseStoreLimits, clock: Callable[[], float], counts: ResponseCounts
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._counts = counts
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}
        self._num_bytes: dict[str, int] = {}

    @property
    def is_on(self) -> bool:
        return self.limits.max_bytes > 0

    def put(self, owner: str, response: StoredResponse) -> bool:
        """Keep a response, in place of one of its id. Return False, and keep neither, where there
        is no room for it."""
        self.remove(owner, response.id)
        room = self.limits.max_bytes - response.num_bytes
        while self._num_bytes.get(owner, 0) > room and (idle := self._least_used(owner)):
            self._evict(owner, idle, Eviction.QUOTA)
        if self._num_bytes.get(owner, 0) > room:
            self._counts.num_evicted[Eviction.TOO_LARGE] += 1
            return False
        self._kept.setdefault(owner, OrderedDict())[response.id] = _Kept(response, self._clock())
        self._note(owner, 1, response.num_bytes)
        return True

    def find(self, owner: str, name: str) -> StoredResponse | None:
        """Return the tenant's response of this id, which has now been asked for; None if it is not
        kept."""
        kept, now = self._kept.get(owner, OrderedDict()), self._clock()
        found = kept.get(name)
        if found is None or self._has_expired(found, now):
            return None
        kept[name] = found._replace(used_s=now)
        kept.move_to_end(name)
        return found.response

    def remove(self, owner: str, name: str) -> StoredResponse | None:
        """Forget a response, and return it; None if it is not kept."""
        kept = self._kept.get(owner, OrderedDict())
        found = kept.pop(name, None)
        if found is None:
            return None
        self._note(owner, -1, -found.response.num_bytes)
        if not kept:
            del self._kept[owner], self._num_bytes[owner]
        return found.response

    def drop_expired(self) -> float | None:
        """Forget what has expired, at most MAX_DROPPED responses. Return in how many seconds there
        may be more, None where nothing is kept."""
        now, num_left, waits = self._clock(), MAX_DROPPED, list[float]()
        for owner in tuple(self._kept):
            while (wait_s := self._oldest_expires_in(owner, now)) is not None:
                if wait_s > 0:
                    waits.append(wait_s)
                    break
                if num_left == 0:
                    return 0.0
                num_left -= 1
                self._evict(owner, next(iter(self._kept[owner])), Eviction.EXPIRED)
        return min(waits, default=None)

    def stop_runs(self) -> None:
        """End what runs without a connection."""
        for each in tuple(self._all()):
            if each.run is not None:
                each.run.stop()

    def _all(self) -> Iterator[StoredResponse]:
        """Yield all responses of all tenants."""
        for kept in self._kept.values():
            for each in kept.values():
                yield each.response

    def _oldest_expires_in(self, owner: str, now: float) -> float | None:
        """Return in how many seconds the tenant's response that was not used for longest expires;
        one that runs has just been used."""
        kept = self._kept.get(owner)
        if not kept:
            return None
        name, oldest = next(iter(kept.items()))
        while oldest.response.run is not None and oldest.used_s < now:
            self.find(owner, name)
            name, oldest = next(iter(kept.items()))
        return oldest.used_s + self.limits.kept_s - now

    def _has_expired(self, kept: _Kept, now: float) -> bool:
        return kept.response.run is None and kept.used_s + self.limits.kept_s <= now

    def _least_used(self, owner: str) -> str | None:
        kept = self._kept.get(owner, OrderedDict())
        return next((name for name, each in kept.items() if each.response.run is None), None)

    def _evict(self, owner: str, name: str, reason: Eviction) -> None:
        self.remove(owner, name)
        self._counts.num_evicted[reason] += 1

    def _note(self, owner: str, num: int, num_bytes: int) -> None:
        self._num_bytes[owner] = self._num_bytes.get(owner, 0) + num_bytes
        self._counts.num_stored += num
        self._counts.num_bytes += num_bytes
