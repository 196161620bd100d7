"""The answer of `/v1/usage`: what keys have used, by model and in sum."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import product

import msgspec

from quire.scheduler.usage.ledger import TenantUsage, added
from quire.server.generation.service import Service
from quire.server.models.served_model import ServedModel
from quire.server.tenancy.rates import Rate
from quire.server.tenancy.tenants import EVERYONE
from quire.server.tenancy.usage_accounts import ModelAccounts, RateAccounts, RequestEnd

EVERYONE_SHOWN = "(everyone)"
"""The key of everyone's account, where no keys are asked for: no key of a file can have it."""


class UsageCounts(msgspec.Struct, frozen=True):
    """Tokens, and times in nanoseconds, which are whole so that they add up.

    prompt_tokens: tokens of prompts whose answer began, cached ones among them.
    cached_tokens: tokens of prompts that were not computed: found in the prefix cache, or taken
        over from another choice.
    output_tokens: tokens drawn, with the few past a stop string or thrown away.
    wasted_tokens: tokens computed again after a preemption.
    lost_tokens: tokens computed again after an engine had ended.
    preemptions: times that a running request was put back.
    kv_block_ns: KV blocks of the device that were held, times the time.
    host_block_ns: KV blocks of the host promised to swapped requests, times the time.
    queue_ns: time spent waiting, also after a preemption, of all requests together.
    requests: by end, outputs that ended (`stop`, `length`, `abort`, `error`), and HTTP requests
        that the engine did not take (`queue_full`, `deadline_refused`).
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    wasted_tokens: int
    lost_tokens: int
    preemptions: int
    kv_block_ns: int
    host_block_ns: int
    queue_ns: int
    requests: dict[str, int]


class ModelUsage(msgspec.Struct, frozen=True):
    """The usage of one model."""

    model: str
    usage: UsageCounts


class KeyUsage(msgspec.Struct, frozen=True):
    """The usage of one API key, by its name: of all models, and of each. `rate_limited` counts the
    requests that its rates did not admit, by the rate."""

    key: str
    usage: UsageCounts
    rate_limited: dict[str, int]
    models: tuple[ModelUsage, ...]


class UsageReport(msgspec.Struct, frozen=True):
    """The usage of keys since the server's process began, at the Unix time `since`; `usage` and
    `rate_limited` are of all that are listed."""

    since: int
    usage: UsageCounts
    rate_limited: dict[str, int]
    keys: tuple[KeyUsage, ...]
    object: str = "usage"


def build_report(
    service: Service, tenants: Sequence[str], models: Sequence[ServedModel]
) -> UsageReport:
    """Return what these tenants have used of these models."""
    rates, accounts = service.metrics.rate_accounts, [model.metrics.accounts for model in models]
    return UsageReport(
        service.since_unix_s,
        _counts(accounts, tenants),
        _by_rate(rates, tenants),
        tuple(
            KeyUsage(
                shown_name(tenant),
                _counts(accounts, (tenant,)),
                _by_rate(rates, (tenant,)),
                tuple(
                    ModelUsage(model.name, _counts((model.metrics.accounts,), (tenant,)))
                    for model in models
                ),
            )
            for tenant in tenants
        ),
    )


def shown_name(tenant: str) -> str:
    """Return the name of a tenant in answers."""
    return EVERYONE_SHOWN if tenant == EVERYONE.name else tenant


def _counts(accounts: Sequence[ModelAccounts], tenants: Sequence[str]) -> UsageCounts:
    used = reduce(
        added,
        (of_model.used(tenant) for of_model, tenant in product(accounts, tenants)),
        TenantUsage(""),
    )
    return UsageCounts(
        used.num_prompt_tokens,
        used.num_cached_tokens,
        used.num_generation_tokens,
        used.num_wasted_tokens,
        used.num_lost_tokens,
        used.num_preemptions,
        used.block_ns,
        used.host_block_ns,
        used.queue_ns,
        {
            end.value: sum(
                of_model.num_ended(end, tenant) for of_model, tenant in product(accounts, tenants)
            )
            for end in RequestEnd
        },
    )


def _by_rate(rates: RateAccounts, tenants: Iterable[str]) -> dict[str, int]:
    named = tuple(tenants)
    return {rate.value: sum(rates.num_limited(rate, each) for each in named) for rate in Rate}
