"""After a preemption admissions leave blocks to those who run, for a while: or what has just come
back is the next to go.
"""

import random
from dataclasses import replace

import pytest

from tests.scheduler.driver import CONFIG, Driver, request

WIDE = replace(CONFIG, max_num_seqs=8, max_num_batched_tokens=64)


@pytest.mark.parametrize(("num_steps", "new_requests"), [(1, []), (20, []), (32, ["s"])])
def test_so_long_a_block_is_left_to_each_that_runs(num_steps: int, new_requests: list[str]) -> None:
    """`a` has made `b` go; what then asks for all the rest has to wait, but not for ever."""
    driver = Driver(WIDE)
    driver.add(request("a", 4, 60))
    driver.add(request("b", 54, 8))
    while not driver.scheduler.stats.num_preemptions:
        driver.step()
    driver.scheduler.abort("b", driver.now)
    for _ in range(num_steps):
        driver.step()
    num_free = driver.cache.usage.free
    while driver.cache.usage.free == num_free:
        driver.step()
    driver.add(request("s", 2 * driver.cache.usage.free, 1))
    assert [each.request.id for each in driver.step().new_requests] == new_requests


def num_preemptions(seed: int) -> int:
    """Of two dozen requests of all sizes, in a pool that holds about four of them."""
    rng, driver = random.Random(seed), Driver(WIDE, num_blocks=40)
    for index in range(24):
        driver.add(request(f"r{index:02}", rng.randint(1, 12), rng.randint(1, 40)))
    driver.run()
    return driver.scheduler.stats.num_preemptions


def test_it_saves_a_crowd_a_quarter_of_its_preemptions(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = sum(map(num_preemptions, range(20)))
    monkeypatch.setattr("quire.scheduler.admission.CALM_STEPS", 0)
    assert calm < 0.75 * sum(map(num_preemptions, range(20)))
