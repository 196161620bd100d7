"""Accounts of what each API key has used of a model since the server began, as its engines tell it,
and of how its requests ended.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from quire.scheduler.usage.ledger import TenantUsage, UsageTotals, UsageUpdate
from quire.server.tenancy.rates import Rate


class RequestEnd(StrEnum):
    """The ends of requests: those of outputs as in the metrics, one for each choice; or, for a
    whole HTTP request, why the engine did not take it: the queue was full, or its deadline had
    passed or could not be met."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    QUEUE_FULL = "queue_full"
    DEADLINE_REFUSED = "deadline_refused"


class ModelAccounts:
    """The accounts of one model by tenant, those of `tenants` from the start on. What is counted by
    end is counted here alone: the server's own counters are sums over the accounts."""

    def __init__(self, tenants: Iterable[str]) -> None:
        self._used = {tenant: UsageTotals() for tenant in tenants}
        self._num_ended: Counter[tuple[str, RequestEnd]] = Counter()

    def __iter__(self) -> Iterator[str]:
        """Yield the tenants."""
        return iter(self._used)

    def used(self, tenant: str) -> TenantUsage:
        """Return what the tenant's requests have used."""
        used = self._used.get(tenant)
        return TenantUsage(tenant) if used is None else used.told_of(tenant)

    def num_ended(self, end: RequestEnd, tenant: str | None = None) -> int:
        """Return how many requests have ended so, of one tenant or of all."""
        tenants = self._used if tenant is None else (tenant,)
        return sum(self._num_ended[each, end] for each in tenants)

    def take(self, told: UsageUpdate) -> None:
        """Add what an engine tells since it told last."""
        for tenant, num_tokens in told.num_generated.items():
            self._account(tenant).num_generation_tokens += num_tokens
        for each in told.whole:
            self._account(each.tenant).add(each)

    def count_end(self, tenant: str, end: RequestEnd) -> None:
        """Count one request that has ended."""
        self._account(tenant)
        self._num_ended[tenant, end] += 1

    def _account(self, tenant: str) -> UsageTotals:
        account = self._used.get(tenant)
        if account is None:
            account = self._used[tenant] = UsageTotals()
        return account


class RateAccounts:
    """Counts of requests that a key's rates did not admit, by tenant and rate."""

    def __init__(self) -> None:
        self._num_limited: Counter[tuple[str, Rate]] = Counter()

    def count(self, tenant: str, rate: Rate) -> None:
        """Count a request that was not admitted."""
        self._num_limited[tenant, rate] += 1

    def num_limited(self, rate: Rate, tenant: str | None = None) -> int:
        """Return how many were not admitted, of one tenant or of all."""
        if tenant is not None:
            return self._num_limited[tenant, rate]
        return sum(num for (_, each), num in self._num_limited.items() if each is rate)
