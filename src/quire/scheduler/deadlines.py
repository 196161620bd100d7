"""Finds the requests that have run out of time."""

from collections.abc import Iterator
from heapq import heappop, heappush

from quire.scheduler.request import Request


class Deadlines:
    """The deadlines of requests, earliest first. A request that ends in time stays listed until its
    deadline has passed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._num_added = 0

    def add(self, request: Request) -> None:
        """List the request if it has a time limit."""
        limit_s = request.new.time_limit_s
        if limit_s is not None:
            self._num_added += 1
            heappush(self._heap, (request.arrived_s + limit_s, self._num_added, request))

    def passed(self, now: float) -> Iterator[Request]:
        """Yield the requests whose deadline has passed, each once, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[-1]
