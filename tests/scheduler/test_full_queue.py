"""Who gets into a full waiting queue: whoever has less than its share of it; and what the others
are told.
"""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from tests.scheduler.driver import CONFIG, Driver, request

MOST = 12
BOUNDED = replace(CONFIG, max_num_seqs=2, max_num_queued_reqs=MOST)
FAIR = replace(BOUNDED, scheduling_policy=PolicyName.FAIR)
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}


@given(st.lists(st.sampled_from("abc"), max_size=80))
def test_a_tenant_is_refused_only_beyond_its_share(tenants: list[str]) -> None:
    driver, waiting = Driver(FAIR), Counter[str]()
    for index, tenant in enumerate(tenants):
        new = replace(request(f"r{index:02}"), tenant=tenant, weight=WEIGHTS[tenant])
        refusal = driver.add(new)
        share = WEIGHTS[tenant] / sum(WEIGHTS[each] for each in {*waiting, tenant})
        if refusal is None:
            waiting[tenant] += 1
            continue
        assert waiting.total() >= MOST and waiting[tenant] >= share * MOST
        alone = set(waiting) == {tenant}
        assert refusal.reason is (Reason.QUEUE_FULL if alone else Reason.OVER_SHARE)
    assert waiting.total() <= 3 * MOST


def test_without_tenants_there_is_one_queue() -> None:
    driver = Driver(BOUNDED)
    for index in range(MOST + 2):
        assert driver.add(replace(request(f"r{index:02}"), tenant="a")) is None
    refusal = driver.add(replace(request("late"), tenant="b"))
    assert refusal is not None and refusal.reason is Reason.QUEUE_FULL


def test_how_long_the_queue_will_take_is_told_once_it_is_known() -> None:
    driver = Driver(BOUNDED)
    for index in range(MOST + 2):
        assert driver.add(request(f"r{index:02}")) is None
    early = driver.add(request("early"))
    assert early is not None and early.wait_s is None
    assert driver.scheduler.stats.predicted_wait_s == 0
    driver.step()
    driver.step()
    waits_s = []
    for index in range(2 * MOST):
        refusal = driver.add(request(f"s{index:02}", num_prompt=8))
        if refusal is not None:
            waits_s.append(refusal.wait_s)
            assert driver.scheduler.stats.predicted_wait_s > 0
    assert waits_s and all(each is not None and each > 0 for each in waits_s)
