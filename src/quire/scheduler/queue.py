"""The waiting queue: each tenant's requests in the order of their priority keys; the tenant that
was served least comes first.
"""

from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from quire.scheduler.request import Request
from quire.scheduler.shares import Shares
from quire.scheduler.sorted_list import SortedList


class Ahead(NamedTuple):
    """The requests that are ahead of one in its tenant's queue: how many, and the id of the
    nearest."""

    num_requests: int
    nearest: str


LATE_SHARE = 1 / 8
"""The share of late prompts in the tokens of prompts, while there are any."""
LEAST_LATE = 16
"""Late prompts are computed in parts of so many tokens at least while others want them."""
HAD_TURN = 1 << 40
"""Added to the number of a tenant of which someone was admitted: no tenant enters with as many."""


def _order(request: Request) -> tuple[float, ...]:
    return (request.is_held, request.is_late, *request.priority_key)


class WaitingQueue:
    """All waiting requests. Looking up the head does not depend on how many there are.

    `_heap` has an entry for every tenant that has someone waiting, and perhaps for some that have
    not. Where counters are equal, those come first that have had no turn since they entered, and of
    these the first that entered. Counters may be too low, since they only grow, and are set right
    when they come to the top. `changes` has by tenant, whatever queues the policy has, how many
    requests more or less wait than when it was last cleared, by whoever reads it. `held_first` may
    be set at any time: then the first of those that let others by comes before these. Late prompts
    are owed `late_debt` tokens; `num_late_running` of them are computed.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._queues: dict[str, SortedList] = {}
        self._num_tokens: dict[str, int] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._in_heap: set[str] = set()
        self._num_entered = 0
        self._last_left = ""
        self._length = 0
        self._num_late = 0
        self._late_debt = 0.0
        self._num_late_running = 0
        self.held_first = False
        self.changes: dict[str, int] = {}

    def __len__(self) -> int:
        return self._length

    @property
    def head(self) -> Request | None:
        """The request to be admitted next: the first of the held or late ones where it is their
        turn."""
        tenant = self._first_tenant()
        if tenant is None:
            return None
        queue = self._queues[tenant]
        num_free = queue.num_below((True,))
        if self.held_first and num_free < len(queue):
            return queue.at(num_free)[0]
        is_turn = self._late_debt > 0 and not self._num_late_running
        if is_turn and (index := queue.num_below((False, True))) < num_free:
            return queue.at(index)[0]
        return queue.first

    def make_late(self, request: Request) -> None:
        """Let a request whose first token will come after its target wait behind those that can
        still have theirs in time. Late ones get LATE_SHARE of the tokens of prompts, one after
        another in their own order, so that they are not held back for ever."""
        self.remove(request)
        request.is_late = True
        self.restore(request)

    def hold(self, request: Request) -> None:
        """Let all that are not held by before a request."""
        self.remove(request)
        request.is_held = True
        self.restore(request)

    def begin_step(self, num_late_running: int) -> int:
        """Return how many tokens of the next step are kept for the late prompts that run."""
        self._num_late_running = num_late_running
        if not self.has_late:
            self._late_debt = 0.0
        return int(self._late_debt) if num_late_running and self._late_debt >= LEAST_LATE else 0

    @property
    def has_late(self) -> bool:
        """Whether late prompts wait or are computed."""
        return self._num_late > 0 or self._num_late_running > 0

    @property
    def late_debt(self) -> float | None:
        """The tokens that late prompts are owed, None without any."""
        return self._late_debt if self.has_late else None

    def most_of(self, request: Request, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` of a prompt that has just been admitted a step
        computes at most: a late one leaves to those that wait more than it is owed."""
        if not request.is_late or self._length == self._num_late:
            return num_tokens
        return min(num_tokens, max(int(self._late_debt), LEAST_LATE))

    def note_prompt(self, request: Request, num_tokens: int) -> None:
        """Note that a step computes so many tokens of a running request's prompt."""
        if request.is_late:
            self._late_debt -= num_tokens * (1 - LATE_SHARE)
        elif self.has_late:
            self._late_debt += num_tokens * LATE_SHARE

    def note_admission(self, request: Request) -> None:
        """Note that a request waits no more. Its tenant comes behind those that were served as
        much."""
        self._num_late_running += request.is_late
        request.is_held = False
        if self._heap and self._heap[0][2] == request.tenant:
            self._num_entered += 1
            number = HAD_TURN + self._num_entered
            heapreplace(self._heap, (self._heap[0][0], number, request.tenant))

    def first(self, num: int) -> list[Request]:
        """Return the first `num` requests, tenant after tenant."""
        found: list[Request] = []
        passed = []
        while len(found) < num and (tenant := self._first_tenant()) is not None:
            passed.append(heappop(self._heap))
            found += self._queues[tenant].at(0, num - len(found))
        for entry in passed:
            heappush(self._heap, entry)
        return found

    def peek(self, most: int) -> list[Request]:
        """Return at most `most` waiting requests, tenant by tenant, each tenant's in order. Unlike
        `first`, this changes nothing and keeps stale entries."""
        found: list[Request] = []
        for queue in self._queues.values():
            found += queue.at(0, most - len(found))
            if len(found) == most:
                break
        return found

    @property
    def num_tokens(self) -> int:
        """The known tokens of all waiting requests, none of which are computed."""
        return sum(self._num_tokens.values())

    def num_in(self, tenant: str) -> int:
        """Return how many requests of the tenant wait."""
        return len(self._queues.get(tenant, ()))

    def share(self, tenant: str, weight: float) -> float:
        """Return the tenant's share of the queue by weight, among the tenants that wait."""
        others = (queue.first.new.weight for name, queue in self._queues.items() if name != tenant)
        return weight / (weight + sum(others))

    def ahead(self, request: Request) -> Ahead:
        """Return the requests before this one in its tenant's queue, also if it is not in the
        queue."""
        queue = self._queues.get(request.tenant)
        index = 0 if queue is None else queue.find(request)
        return Ahead(index, queue.at(index - 1, index)[0].id if queue and index else "")

    def num_tokens_ahead(self, request: Request) -> int:
        """Return the known tokens of the requests before this one in the tenant's queue."""
        queue = self._queues.get(request.tenant)
        if queue is None:
            return 0
        behind = queue.at(queue.find(request))
        return self._num_tokens[request.tenant] - sum(len(each.token_ids) for each in behind)

    def add(self, request: Request) -> None:
        """Insert the request by its priority key, which a preempted one has kept."""
        if request.tenant not in self._queues:
            least = self._first_tenant()
            level = self._shares.served(self._last_left if least is None else least)
            self._shares.enter(request.tenant, level)
        self.restore(request)

    def restore(self, request: Request) -> None:
        """Put back a request that was taken out for a moment: nothing has changed for its
        tenant.
        """
        tenant = request.tenant
        if tenant not in self._queues:
            self._open(tenant)
        self._queues[tenant].add(request)
        self._num_late += request.is_late
        self._num_tokens[tenant] += len(request.token_ids)
        self._length += 1
        self._change(request.new.tenant, 1)

    def remove(self, request: Request) -> None:
        """Take out a request that waits."""
        tenant = request.tenant
        self._queues[tenant].remove(request)
        self._num_late -= request.is_late
        self._num_tokens[tenant] -= len(request.token_ids)
        self._length -= 1
        self._change(request.new.tenant, -1)
        if not self._queues[tenant]:
            del self._queues[tenant], self._num_tokens[tenant]
            self._last_left = tenant

    def _change(self, tenant: str, num_requests: int) -> None:
        self.changes[tenant] = self.changes.get(tenant, 0) + num_requests

    def _open(self, tenant: str) -> None:
        self._queues[tenant] = SortedList(_order)
        self._num_tokens[tenant] = 0
        if tenant not in self._in_heap:
            self._in_heap.add(tenant)
            self._num_entered += 1
            heappush(self._heap, (self._shares.served(tenant), self._num_entered, tenant))

    def _first_tenant(self) -> str | None:
        heap = self._heap
        while heap:
            served, number, tenant = heap[0]
            now_served = self._shares.served(tenant)
            if tenant not in self._queues:
                heappop(heap)
                self._in_heap.remove(tenant)
            elif now_served == served:
                return tenant
            else:
                heapreplace(heap, (now_served, number, tenant))
        return None
