"""After a preemption admissions leave room to those who run, for a while: or what has just come
back is the next to go.
"""

import random
from dataclasses import replace

import pytest

from tests.scheduler.desk import CONFIG, Desk, request

WIDE = replace(CONFIG, max_num_seqs=8, max_num_batched_tokens=64)


@pytest.mark.parametrize(("num_turns", "joins"), [(1, []), (20, []), (32, ["s"])])
def test_so_long_a_block_is_left_to_each_that_runs(num_turns: int, joins: list[str]) -> None:
    """`a` has made `b` go; what then asks for all the rest has to wait, but not for ever."""
    desk = Desk(WIDE)
    desk.add(request("a", 4, 60))
    desk.add(request("b", 54, 8))
    while not desk.scheduler.stats.num_preemptions:
        desk.turn()
    desk.scheduler.abort("b", desk.now)
    for _ in range(num_turns):
        desk.turn()
    num_free = desk.cache.usage.free
    while desk.cache.usage.free == num_free:
        desk.turn()
    desk.add(request("s", 2 * desk.cache.usage.free, 1))
    assert [join.new.id for join in desk.turn().joins] == joins


def num_preemptions(seed: int) -> int:
    """Of two dozen requests of all sizes, in a pool that holds about four of them."""
    drawn, desk = random.Random(seed), Desk(WIDE, num_blocks=40)
    for index in range(24):
        desk.add(request(f"r{index:02}", drawn.randint(1, 12), drawn.randint(1, 40)))
    desk.run()
    return desk.scheduler.stats.num_preemptions


def test_it_saves_a_crowd_a_quarter_of_its_preemptions(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = sum(map(num_preemptions, range(20)))
    monkeypatch.setattr("quire.scheduler.admission.CALM_STEPS", 0)
    assert calm < 0.75 * sum(map(num_preemptions, range(20)))
