"""In which order requests are served: by arrival, by priority with ageing, or by tenants' shares.

A policy gives each request a lane and keys that never change, so that an order once found stays. Of
the lanes, the one that was served least comes first (`shares.py`); without tenants there is one.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from quire.scheduler.request import NewRequest, Request, SortKey

TenantId: TypeAlias = str


class PolicyName(StrEnum):
    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


@dataclass(frozen=True, slots=True)
class Policy:
    """`ageing_s`: a request that has waited so long counts as one priority better. With 0 it never
    does: a stream of better ones then holds it back for ever.
    """

    name: PolicyName
    ageing_s: float

    def tenant(self, new: NewRequest) -> TenantId:
        return new.tenant if self.name is PolicyName.FAIR else ""

    def priority_key(self, new: NewRequest, *, arrived_s: float, number: int) -> SortKey:
        """Its place among the waiting of its lane; `number` counts arrivals.

        Two requests age alike, so that what they gain on each other is the time between their
        arrivals, once and for all.
        """
        if self.name is not PolicyName.PRIORITY:
            return 0.0, number
        aged = arrived_s / self.ageing_s if self.ageing_s else 0.0
        return new.priority + aged, number

    def running_order(self, request: Request, *, number: int) -> SortKey:
        """Its place among the running; `number` counts admissions."""
        return request.priority_key if self.name is PolicyName.PRIORITY else (0.0, number)
