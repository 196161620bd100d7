"""The accounts of keys: rows of metrics add up to all of them, whoever has a label; without keys
there is one account."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.usage.ledger import TenantUsage, UsageUpdate, added
from quire.server.app.usage.report import UsageReport
from quire.server.tenancy.rates import Rate
from quire.server.tenancy.usage_accounts import ModelAccounts, RateAccounts, RequestEnd
from quire.server.tenancy.usage_rows import OTHERS, rate_rows, usage_rows
from tests.server.served import MODEL, Served

TENANTS = ("ann", "bob", "key-1", "(admin)", "")
COUNTS = st.integers(0, 1 << 70)
USAGES = st.builds(
    TenantUsage, st.sampled_from(TENANTS), *[COUNTS] * (len(TenantUsage._fields) - 1)
)
TOLD = st.lists(
    st.builds(
        UsageUpdate,
        st.dictionaries(st.sampled_from(TENANTS), COUNTS),
        st.lists(USAGES, max_size=3).map(tuple),
    ),
    max_size=4,
)


@given(TOLD, st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from(RequestEnd))))
def test_rows_add_up_to_what_was_told(
    updates: list[UsageUpdate], ends: list[tuple[str, RequestEnd]]
) -> None:
    accounts = ModelAccounts(("ann", "bob"))
    for update in updates:
        accounts.take(update)
    told = [each for update in updates for each in usages_of(update)]
    for tenant, end in ends:
        accounts.count_end(tenant, end)
    rows = usage_rows(accounts, ("ann", "bob"))
    tokens = rows["tenant_tokens_total"]
    assert {labels[0] for labels, _ in tokens} == {"ann", "bob", OTHERS}
    for kind, name in (("prompt", "num_prompt_tokens"), ("output", "num_generation_tokens")):
        shown = sum(value for (_, shown), value in tokens if shown == kind)
        assert shown == sum(getattr(each, name) for each in told)
    assert accounts.used("ann") == sum_of(told, "ann")
    shown_ends = rows["tenant_requests_total"]
    for end in RequestEnd:
        num = sum(value for (_, shown), value in shown_ends if shown == end)
        assert num == accounts.num_ended(end) == sum(each == end for _, each in ends)


def usages_of(update: UsageUpdate) -> list[TenantUsage]:
    generated = [
        TenantUsage(tenant, num_generation_tokens=num_tokens)
        for tenant, num_tokens in update.num_generated.items()
    ]
    return [*generated, *update.whole]


def sum_of(told: list[TenantUsage], tenant: str) -> TenantUsage:
    whole = TenantUsage(tenant)
    for each in told:
        if each.tenant == tenant:
            whole = added(whole, each)
    return whole


def test_rates_of_keys_without_a_name_are_one_row() -> None:
    rates = RateAccounts()
    for tenant in ("ann", "key-1", "key-2"):
        rates.count(tenant, Rate.TOKENS)
    rows = rate_rows(rates, ("ann",))
    assert dict(rows["tenant_rate_limited_total"])[OTHERS, "tokens"] == 2
    assert dict(rows["rate_limited_total"]) == {("requests",): 0, ("tokens",): 3}


def test_without_keys_everyone_has_one_account(served: Served) -> None:
    def ask(query: str = "") -> UsageReport:
        answer = served.client.get(f"/v1/usage{query}").content
        return msgspec.json.decode(answer, type=UsageReport)

    before = ask().usage
    served.complete(prompt=[5, 6, 7], max_tokens=4, n=2).raise_for_status()
    after = ask()
    (account,) = after.keys
    assert account.key == "(everyone)" and account.usage == after.usage
    assert [each.model for each in account.models] == [MODEL]
    assert after.usage.prompt_tokens - before.prompt_tokens == 6
    assert after.usage.output_tokens - before.output_tokens == 8
    assert ask("?key=(everyone)") == after == ask(f"?model={MODEL}")
    assert served.client.get("/v1/usage?key=ann").status_code == 404
    assert served.client.get("/v1/usage?month=11").status_code == 400
