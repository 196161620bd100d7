"""Requests in the order of a key that does not change while they stand in it."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from quire.scheduler.request import Request, SortKey


class SortedList:
    """Finding a place takes logarithmic time; taking it or leaving it moves memory, no more."""

    def __init__(self, key: Callable[[Request], SortKey]) -> None:
        self._key = key
        self._keys: list[SortKey] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Those that stand in it now, whatever happens on the way."""
        return iter(self._requests.copy())

    @property
    def first(self) -> Request:
        return self._requests[0]

    @property
    def last(self) -> Request:
        return self._requests[-1]

    def find(self, request: Request) -> int:
        """How many stand ahead of it, or would."""
        return bisect_left(self._keys, self._key(request))

    def at(self, start: int, end: int | None = None) -> list[Request]:
        return self._requests[start:end]

    def add(self, request: Request) -> None:
        index = self.find(request)
        self._keys.insert(index, self._key(request))
        self._requests.insert(index, request)

    def remove(self, request: Request) -> None:
        index = self.find(request)
        del self._keys[index]
        del self._requests[index]
