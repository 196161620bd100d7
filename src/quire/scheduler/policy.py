"""Policies order the requests that are served: by arrival, by priority with ageing, or by tenants'
shares.

A policy gives each request a tenant and keys that never change, so that an order once found stays.
Each tenant has a queue; the tenant that was served least comes first (`shares.py`). Under policies
that know no tenants all requests have one queue.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from quire.scheduler.request import NewRequest, Request, SortKey

TenantId: TypeAlias = str
"""Names the queue that a request waits in."""


class PolicyName(StrEnum):
    """The policies by the names of their flag."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


class QueueOrder(StrEnum):
    """The orders of requests that a policy holds equal: by arrival, or those first that are
    expected to take the least of the machine, within a bound."""

    ARRIVAL = "arrival"
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy. A request that has waited `ageing_s` seconds, more than 0, counts as one
    priority better, so that no stream of better ones holds it back for ever.
    """

    name: PolicyName
    ageing_s: float

    def tenant(self, new: NewRequest) -> TenantId:
        """Return the tenant whose queue the request waits in; "" where the policy knows no
        tenants.
        """
        return new.tenant if self.name is PolicyName.FAIR else ""

    def priority_key(
        self, new: NewRequest, *, arrived_s: float, lead_s: float, number: int
    ) -> SortKey:
        """Return the key that orders the waiting requests of a tenant; `number` counts arrivals. It
        counts as having arrived `lead_s` earlier, but does not gain a priority by that. One that
        counts as having come later than it did has that time for `arrived_s`.

        Two requests age alike, so that what they gain on each other is the time between their
        arrivals, once and for all.
        """
        if self.name is not PolicyName.PRIORITY:
            return arrived_s - lead_s, number
        lead_s = min(lead_s, self.ageing_s / 2)
        return new.priority + (arrived_s - lead_s) / self.ageing_s, number

    def running_order(self, request: Request, *, number: int) -> SortKey:
        """Return the key that orders the running requests; `number` counts admissions."""
        return request.priority_key if self.name is PolicyName.PRIORITY else (0.0, number)
