"""The ledger of requests' usage, by the tenant that pays for them.

A count goes to the total and to a tenant in one place, so that the tenants' counts add up to the
total, whatever becomes of the requests. Tokens of outputs, which each step has for each request,
are counted by tenant alone, and the total is their sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple


class TenantUsage(NamedTuple):
    """The usage of one tenant since its last report.

    `num_prompt_tokens` are the tokens of computed prompts, of which `num_prefix_hits` were in the
    prefix cache and `num_forked_tokens` came from another choice. `num_wasted_tokens` were
    recomputed after a preemption, and `num_lost_tokens` after the end of an engine. `block_ns` is
    held device blocks times nanoseconds, `host_block_ns` host blocks reserved for swapped requests
    times nanoseconds. `queue_ns` is the sum of waiting times in nanoseconds.
    """

    tenant: str
    num_prompt_tokens: int = 0
    num_prefix_hits: int = 0
    num_forked_tokens: int = 0
    num_generation_tokens: int = 0
    num_wasted_tokens: int = 0
    num_lost_tokens: int = 0
    num_preemptions: int = 0
    block_ns: int = 0
    host_block_ns: int = 0
    queue_ns: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """The tokens of prompts that were not computed."""
        return self.num_prefix_hits + self.num_forked_tokens


class UsageUpdate(NamedTuple):
    """The usage since the previous update: complete in `whole`, and in `num_generated` for tenants
    with nothing but generated tokens."""

    num_generated: Mapping[str, int]
    whole: tuple[TenantUsage, ...]


NOTHING_USED = UsageUpdate({}, ())


def added(before: TenantUsage, more: TenantUsage) -> TenantUsage:
    """Return the usage of the tenant of `before` with `more` added to it."""
    sums = (past + new for past, new in zip(before[1:], more[1:], strict=True))
    return TenantUsage(before.tenant, *sums)


@dataclass(slots=True)
class UsageTotals:
    """The counts of `TenantUsage`, of one tenant or of all, while they grow."""

    num_prompt_tokens: int = 0
    num_prefix_hits: int = 0
    num_forked_tokens: int = 0
    num_generation_tokens: int = 0
    num_wasted_tokens: int = 0
    num_lost_tokens: int = 0
    num_preemptions: int = 0
    block_ns: int = 0
    host_block_ns: int = 0
    queue_ns: int = 0

    def add(self, more: TenantUsage) -> None:
        """Add the usage of a tenant."""
        for name, num in zip(_NAMES, more[1:], strict=True):
            setattr(self, name, getattr(self, name) + num)

    def told_of(self, tenant: str) -> TenantUsage:
        """Return the counts as the usage of this tenant."""
        return TenantUsage(tenant, *_COUNTS(self))


_NAMES = TenantUsage._fields[1:]
_COUNTS = attrgetter(*_NAMES)


@dataclass(slots=True)
class GeneratedTokens:
    """The generated tokens of one tenant's live requests; `num_tokens` are unreported."""

    num_tokens: int = 0
    num_requests: int = 0


class UsageLedger:
    """Usage since the start in `total`, and unreported usage by tenant."""

    def __init__(self) -> None:
        self._num_generated = 0
        self._generated: dict[str, GeneratedTokens] = {}
        self._total = UsageTotals()
        self._untold: dict[str, UsageTotals] = {}

    @property
    def total(self) -> UsageTotals:
        """The counts of all tenants since the start."""
        num_untold = sum(each.num_tokens for each in self._generated.values())
        self._total.num_generation_tokens = self._num_generated + num_untold
        return self._total

    def open(self, tenant: str) -> GeneratedTokens:
        """Return the counter of generated tokens for a new request of the tenant, until it is
        closed."""
        generated = self._generated.get(tenant)
        if generated is None:
            generated = self._generated[tenant] = GeneratedTokens()
        generated.num_requests += 1
        return generated

    def close(self, tenant: str) -> None:
        """Note that a request of the tenant has ended."""
        generated = self._generated[tenant]
        generated.num_requests -= 1
        if not generated.num_requests:
            self.accounts(tenant)[1].num_generation_tokens += generated.num_tokens
            self._num_generated += generated.num_tokens
            del self._generated[tenant]

    def accounts(self, tenant: str) -> tuple[UsageTotals, UsageTotals]:
        """Return the two accounts for a tenant's usage: the total, and its own."""
        own = self._untold.get(tenant)
        if own is None:
            own = self._untold[tenant] = UsageTotals()
        return self._total, own

    def take(self) -> UsageUpdate:
        """Return the usage since the last call."""
        num_generated = {}
        for tenant, generated in self._generated.items():
            if generated.num_tokens:
                num_generated[tenant] = generated.num_tokens
                self._num_generated += generated.num_tokens
                generated.num_tokens = 0
        if not self._untold:
            return UsageUpdate(num_generated, ())
        for tenant, own in self._untold.items():
            own.num_generation_tokens += num_generated.pop(tenant, 0)
        told = tuple(own.told_of(tenant) for tenant, own in self._untold.items())
        self._untold.clear()
        return UsageUpdate(num_generated, told)
