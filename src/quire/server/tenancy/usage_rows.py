"""The rows of the metrics of what tenants use. Only tenants that the operator has named have labels
of their own, so that labels stay few; all others are one."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from quire.scheduler.usage.ledger import TenantUsage, added
from quire.server.tenancy.rates import Rate
from quire.server.tenancy.usage_accounts import ModelAccounts, RateAccounts, RequestEnd

OTHERS = "(others)"
"""The label of all tenants without a name of the operator's: no key of a file can have it."""
NS_PER_S = 10**9
UsageRows: TypeAlias = dict[str, list[tuple[tuple[str, ...], float]]]
"""By metric pairs of label values and the value of the series."""


def usage_rows(accounts: ModelAccounts, named: Sequence[str]) -> UsageRows:
    """Return the rows of one model; `named` are the tenants with labels of their own."""
    used = {
        label: reduce(added, map(accounts.used, tenants), TenantUsage(label))
        for label, tenants in _labels(accounts, named).items()
    }
    total = reduce(added, used.values(), TenantUsage(""))
    return {
        "kv_block_seconds_total": _by_memory((), total),
        "queue_seconds_total": [((), total.queue_ns / NS_PER_S)],
        "tenant_tokens_total": [
            ((label, kind), num)
            for label, each in used.items()
            for kind, num in _tokens(each).items()
        ],
        "tenant_kv_block_seconds_total": [
            row for label, each in used.items() for row in _by_memory((label,), each)
        ],
        "tenant_queue_seconds_total": [
            ((label,), each.queue_ns / NS_PER_S) for label, each in used.items()
        ],
        "tenant_requests_total": [
            ((label, end.value), sum(accounts.num_ended(end, each) for each in tenants))
            for label, tenants in _labels(accounts, named).items()
            for end in RequestEnd
        ],
    }


def rate_rows(rates: RateAccounts, named: Sequence[str]) -> UsageRows:
    """Return the rows of what rates did not admit."""
    limited = {rate: rates.num_limited(rate) for rate in Rate}
    by_tenant = {(name, rate): rates.num_limited(rate, name) for name in named for rate in Rate}
    for rate in Rate:
        of_named = sum(by_tenant[name, rate] for name in named)
        by_tenant[OTHERS, rate] = limited[rate] - of_named
    return {
        "rate_limited_total": [((rate.value,), num) for rate, num in limited.items()],
        "tenant_rate_limited_total": [
            ((tenant, rate.value), num) for (tenant, rate), num in by_tenant.items()
        ],
    }


def _labels(accounts: Iterable[str], named: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the tenants by the labels that they have."""
    own = {name: (name,) for name in named}
    return own | {OTHERS: tuple(tenant for tenant in accounts if tenant not in own)}


def _tokens(used: TenantUsage) -> Mapping[str, int]:
    return {
        "prompt": used.num_prompt_tokens,
        "cached": used.num_cached_tokens,
        "output": used.num_generation_tokens,
        "wasted": used.num_wasted_tokens,
        "lost": used.num_lost_tokens,
    }


def _by_memory(labels: tuple[str, ...], used: TenantUsage) -> list[tuple[tuple[str, ...], float]]:
    return [
        ((*labels, "device"), used.block_ns / NS_PER_S),
        ((*labels, "host"), used.host_block_ns / NS_PER_S),
    ]
