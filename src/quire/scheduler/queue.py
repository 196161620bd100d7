"""The waiting line: lanes of requests by rank; the lane that was served least comes first."""

from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import NamedTuple

from quire.scheduler.line import Line
from quire.scheduler.request import Request
from quire.scheduler.shares import Shares


class Ahead(NamedTuple):
    """Who stands ahead in a request's own lane: how many, and the id of the nearest."""

    num_requests: int
    nearest: str


class WaitingQueue:
    """Looking up the head does not depend on the length of the line.

    `_heap` has an entry for every lane that has someone, and perhaps for some that are empty; its
    counters may be too low, since they only grow, and are set right when they come to the top.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._lanes: dict[str, Line] = {}
        self._num_tokens: dict[str, int] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._in_heap: set[str] = set()
        self._num_entered = 0
        self._last_left = ""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def head(self) -> Request | None:
        lane = self._first_lane()
        return None if lane is None else self._lanes[lane].first

    def first(self, num: int) -> list[Request]:
        """The head and those behind it, lane after lane."""
        found: list[Request] = []
        passed = []
        while len(found) < num and (lane := self._first_lane()) is not None:
            passed.append(heappop(self._heap))
            found += self._lanes[lane].at(0, num - len(found))
        for entry in passed:
            heappush(self._heap, entry)
        return found

    @property
    def num_tokens(self) -> int:
        """Known tokens of all who wait, none of which is computed."""
        return sum(self._num_tokens.values())

    def num_in(self, lane: str) -> int:
        return len(self._lanes.get(lane, ()))

    def share(self, lane: str, weight: float) -> float:
        """What the lane may have of the line by its weight, if it waits beside those who do."""
        others = (line.first.new.weight for name, line in self._lanes.items() if name != lane)
        return weight / (weight + sum(others))

    def ahead(self, request: Request) -> Ahead:
        line = self._lanes.get(request.lane)
        index = 0 if line is None else line.find(request)
        return Ahead(index, line.at(index - 1, index)[0].id if line and index else "")

    def num_tokens_ahead(self, request: Request) -> int:
        """Known tokens, none of which is computed, of those ahead in its lane."""
        line = self._lanes.get(request.lane)
        if line is None:
            return 0
        behind = line.at(line.find(request))
        return self._num_tokens[request.lane] - sum(len(each.token_ids) for each in behind)

    def add(self, request: Request) -> None:
        """In its place by rank, which a preempted request has kept."""
        if request.lane not in self._lanes:
            least = self._first_lane()
            level = self._shares.served(self._last_left if least is None else least)
            self._shares.enter(request.lane, level)
        self.restore(request)

    def restore(self, request: Request) -> None:
        """Put back one that was taken out for a moment: nothing has changed for its lane."""
        lane = request.lane
        if lane not in self._lanes:
            self._open(lane)
        self._lanes[lane].add(request)
        self._num_tokens[lane] += len(request.token_ids)
        self._length += 1

    def remove(self, request: Request) -> None:
        lane = request.lane
        self._lanes[lane].remove(request)
        self._num_tokens[lane] -= len(request.token_ids)
        self._length -= 1
        if not self._lanes[lane]:
            del self._lanes[lane], self._num_tokens[lane]
            self._last_left = lane

    def _open(self, lane: str) -> None:
        self._lanes[lane] = Line(attrgetter("rank"))
        self._num_tokens[lane] = 0
        if lane not in self._in_heap:
            self._in_heap.add(lane)
            self._num_entered += 1
            heappush(self._heap, (self._shares.served(lane), self._num_entered, lane))

    def _first_lane(self) -> str | None:
        heap = self._heap
        while heap:
            served, number, lane = heap[0]
            now_served = self._shares.served(lane)
            if lane not in self._lanes:
                heappop(heap)
                self._in_heap.remove(lane)
            elif now_served == served:
                return lane
            else:
                heapreplace(heap, (now_served, number, lane))
        return None
