"""The running requests in their order: scheduled from the first on, preempted from the last."""

from collections.abc import Iterator
from operator import attrgetter

from quire.scheduler.request import Request
from quire.scheduler.shares import Shares
from quire.scheduler.sorted_list import SortedList


class RunningSet:
    """Keeps the running requests sorted by `running_order`, as a whole and by tenant."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._by_id: dict[str, Request] = {}
        self._order = SortedList(attrgetter("running_order"))
        self._queues: dict[str, SortedList] = {}
        self._num_late = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        """Yield the running requests of now, also if the set changes meanwhile."""
        return iter(self._order)

    def __contains__(self, request: Request) -> bool:
        return request.id in self._by_id

    def get(self, request_id: str) -> Request | None:
        """Return the running request of this id, or None."""
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        self._by_id[request.id] = request
        self._num_late += request.is_late
        self._order.add(request)
        if request.tenant not in self._queues:
            self._queues[request.tenant] = SortedList(attrgetter("running_order"))
        self._queues[request.tenant].add(request)

    def remove(self, request: Request) -> None:
        del self._by_id[request.id]
        self._num_late -= request.is_late
        self._order.remove(request)
        self._queues[request.tenant].remove(request)
        if not self._queues[request.tenant]:
            del self._queues[request.tenant]

    def late(self) -> list[Request]:
        """Return those that let others by, in their order."""
        return [each for each in self if each.lets_others_by] if self._num_late else []

    def num_in(self, tenant: str) -> int:
        """Return how many requests of the tenant run."""
        return len(self._queues.get(tenant, ()))

    def victim(self, request: Request, number: int) -> Request | None:
        """Return the victim that gives up blocks for this request, which is being scheduled: the
        last of the tenant that was served most. It is never one that is in the step already: one
        ahead of the request, or admitted after the step of this `number`. Nor is it the first of
        all, which is why some request always goes on; that one gets None, and waits a step, where
        all others have just been admitted."""
        first = self._order.first
        lasts = (_last(queue, number) for queue in self._queues.values())
        return max(
            (
                each
                for each in lasts
                if each is not None
                and each.running_order >= request.running_order
                and each is not first
            ),
            key=lambda each: (self._shares.served(each.tenant), each.running_order),
            default=None,
        )


def _last(queue: SortedList, number: int) -> Request | None:
    """Return the last that was admitted by the step of this number."""
    if queue.last.admitted_step <= number:
        return queue.last
    return next((each for each in queue.at(0)[::-1] if each.admitted_step <= number), None)
