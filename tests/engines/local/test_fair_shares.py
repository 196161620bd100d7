"""Tenants get their shares of several engines together, whichever has their requests: each engine's
scheduler is told what the others have served."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engines.local.charges import Charges
from quire.scheduler.policy import PolicyName
from quire.scheduler.usage.ledger import TenantUsage, UsageUpdate
from tests.scheduler.driver import CONFIG, Driver, request

FAIR = replace(CONFIG, scheduling_policy=PolicyName.FAIR)
WORK = 4 + 2 * 4
"""What a request of the driver's costs."""
NUM_STEPS = 60


def served_by(
    weights: dict[str, float], placed: dict[str, tuple[int, ...]], *, tells: bool = True
) -> dict[str, float]:
    """Serve tenants that always wait, each in the engines where it is placed; return what they were
    served over their weights."""
    drivers, charges = (Driver(FAIR), Driver(FAIR)), Charges(2)
    number = 0
    for _ in range(NUM_STEPS):
        for tenant, engines in placed.items():
            for engine in engines:
                for _ in range(2):
                    number += 1
                    new = replace(request(f"r{number:04}"), tenant=tenant, weight=weights[tenant])
                    charges.note(new)
                    assert drivers[engine].add(new) is None
        for index, driver in enumerate(drivers):
            driver.step()
            charges.take(index, driver.scheduler.usage.take(driver.now))
            due = charges.due(1 - index)
            if tells:
                drivers[1 - index].scheduler.charge(due)
    return {tenant: sum(each.served[tenant] for each in drivers) for tenant in weights}


@given(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([(0,), (1,), (0, 1)]))
def test_who_waits_everywhere_has_no_more_than_its_share(
    weight: float, places: tuple[int, ...]
) -> None:
    """Tenant `a` waits in both engines. Where `b` waits in one alone, that one serves nobody else
    as long as `b` has less than its share; it cannot have more than the whole engine."""
    served = served_by({"a": 1.0, "b": weight}, {"a": (0, 1), "b": places})
    in_flight = 2 * FAIR.max_num_seqs * WORK
    total = served["a"] + weight * served["b"]
    most = total / 2 / weight if len(places) == 1 else total
    expected = min(total / (1 + weight), most)
    assert served["b"] == pytest.approx(expected, abs=in_flight)


def test_without_being_told_an_engine_serves_who_was_served_elsewhere() -> None:
    """The planted fault: the bound above is missed by far."""
    told = served_by({"a": 1.0, "b": 1.0}, {"a": (0, 1), "b": (1,)})
    alone = served_by({"a": 1.0, "b": 1.0}, {"a": (0, 1), "b": (1,)}, tells=False)
    assert told["a"] == pytest.approx(told["b"], rel=0.2)
    assert alone["a"] > 2 * alone["b"]


usages = st.builds(
    lambda tenant, prompt, hits, num: TenantUsage(tenant, prompt, min(prompt, hits), 0, num),
    st.sampled_from("ab"),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 9),
)


@given(st.lists(st.tuples(st.integers(0, 2), usages, st.booleans()), max_size=20))
def test_all_that_is_served_is_told_to_the_others_once(
    given: list[tuple[int, TenantUsage, bool]],
) -> None:
    """What is found in the cache is told before the prompt that it is of."""
    charges = Charges(3)
    expected = [0.0, 0.0, 0.0]
    told = [0.0, 0.0, 0.0]
    for index, usage, is_read in given:
        hits = usage._replace(num_prompt_tokens=0, num_generation_tokens=0)
        charges.take(index, UsageUpdate({}, (hits,)))
        charges.take(index, UsageUpdate({}, (usage._replace(num_prefix_hits=0),)))
        price = usage.num_prompt_tokens - usage.num_prefix_hits + 2 * usage.num_generation_tokens
        for other in {0, 1, 2} - {index}:
            expected[other] += price
            due = charges.due(other) if is_read else {}
            assert all(each > 0 for each in due.values())
            told[other] += sum(due.values())
    for index in range(3):
        told[index] += sum(charges.due(index).values())
    assert told == pytest.approx(expected)
