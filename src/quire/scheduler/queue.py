"""The waiting line: first come, first served; a preempted request returns to the front."""

from collections import OrderedDict

from quire.scheduler.request import Request


class WaitingQueue:
    """Every operation is O(1), leaving from the middle included."""

    def __init__(self) -> None:
        self._line: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def head(self) -> Request | None:
        return next(iter(self._line.values()), None)

    def append(self, request: Request) -> None:
        self._line[request.id] = request

    def push_front(self, request: Request) -> None:
        self._line[request.id] = request
        self._line.move_to_end(request.id, last=False)

    def remove(self, request: Request) -> None:
        del self._line[request.id]
