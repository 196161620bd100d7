"""The work that an engine has yet to do, as the server knows it: prompt tokens that are not
computed, and tokens of outputs that are expected, at the prices of fair shares.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from quire.scheduler.policy import PolicyName
from quire.scheduler.request import NewRequest


class WorkClass(NamedTuple):
    """Decides who comes before whom: a tenant, and a priority, the less the sooner."""

    tenant: str
    priority: int


def class_of(request: NewRequest) -> WorkClass:
    return WorkClass(request.tenant, request.priority)


@dataclass(slots=True)
class _Share:
    """The work of the requests of one class, how many there are, and the weight of the last."""

    work: float = 0.0
    num_requests: int = 0
    weight: float = 1.0


class OutstandingWork:
    """The work of one engine, by classes. Under the `policy` of its scheduler some of it is ahead
    of a request."""

    def __init__(self, policy: PolicyName) -> None:
        self._policy = policy
        self._shares: defaultdict[WorkClass, _Share] = defaultdict(_Share)

    @property
    def total(self) -> float:
        """All work."""
        return sum(each.work for each in self._shares.values())

    def open(self, request: NewRequest, work: float) -> None:
        """Note a request that was given to the engine."""
        share = self._shares[class_of(request)]
        share.work += work
        share.num_requests += 1
        share.weight = request.weight

    def reduce(self, request: NewRequest, work: float) -> None:
        """Note that so much of a request is done."""
        self._shares[class_of(request)].work -= work

    def close(self, request: NewRequest, work: float) -> None:
        """Note that a request has ended or is elsewhere; so much of it was left."""
        kind = class_of(request)
        share = self._shares[kind]
        share.work -= work
        share.num_requests -= 1
        if not share.num_requests:
            del self._shares[kind]

    def ahead_of(self, request: NewRequest, work: float) -> float:
        """Return the work that is done before a request of so much work, or beside it at its
        expense: under priorities that of requests as urgent as it is; under fair shares, where
        tenants are served at once by their weights, that of its tenant and what the others are
        served meanwhile."""
        if self._policy is PolicyName.PRIORITY:
            urgent = (w for kind, w in self._shares.items() if kind.priority <= request.priority)
            return sum(each.work for each in urgent)
        if self._policy is PolicyName.FAIR:
            return self._fair_work_ahead_of(request, work)
        return self.total

    def _fair_work_ahead_of(self, request: NewRequest, work: float) -> float:
        own = 0.0
        others: dict[str, _Share] = {}
        for kind, share in self._shares.items():
            if kind.tenant == request.tenant:
                own += share.work
                continue
            other = others.setdefault(kind.tenant, _Share(weight=share.weight))
            other.work += share.work
        served = (own + work) / request.weight
        return own + sum(min(each.work, served * each.weight) for each in others.values())
