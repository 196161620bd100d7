"""Requests in the order of a key that does not change while they are listed."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from quire.scheduler.request import Request


class SortedList:
    """Finding an index takes logarithmic time; inserting and removing moves memory, no more."""

    def __init__(self, key: Callable[[Request], tuple[float, ...]]) -> None:
        self._key = key
        self._keys: list[tuple[float, ...]] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Yield the items of now, also if the list changes meanwhile."""
        return iter(self._requests.copy())

    @property
    def first(self) -> Request:
        return self._requests[0]

    @property
    def last(self) -> Request:
        return self._requests[-1]

    def find(self, request: Request) -> int:
        """Return the number of requests before this one, also if it is not in the list."""
        return bisect_left(self._keys, self._key(request))

    def num_below(self, key: tuple[float, ...]) -> int:
        """Return the number of requests before a key."""
        return bisect_left(self._keys, key)

    def at(self, start: int, end: int | None = None) -> list[Request]:
        """Return the requests of the indices `start .. end`."""
        return self._requests[start:end]

    def add(self, request: Request) -> None:
        """Insert the request by its key."""
        index = self.find(request)
        self._keys.insert(index, self._key(request))
        self._requests.insert(index, request)

    def remove(self, request: Request) -> None:
        """Remove a request that is listed."""
        index = self.find(request)
        del self._keys[index]
        del self._requests[index]
