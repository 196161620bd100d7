"""Those who find the queue full are told when to come again, and get in then: crowds in virtual
time, whose clients do as they are told.
"""

from dataclasses import replace
from statistics import median

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.appointments import MAX_AHEAD_S
from quire.scheduler.scheduler import Scheduler
from tests.scheduler.driver import CONFIG, request, result_of

STEP_S, TOKEN_S = 0.01, 0.001
NUM_PROMPT = 3


class Crowd:
    """Clients of one scheduler, whose steps follow one another: each takes STEP_S, and TOKEN_S for
    each token."""

    def __init__(self, *, max_num_seqs: int, max_num_queued_reqs: int) -> None:
        self.config = replace(
            CONFIG,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=64,
            max_num_queued_reqs=max_num_queued_reqs,
        )
        self.scheduler = Scheduler(self.config, KVCache(CacheConfig(4000, 2)))
        self.now = 0.0
        self.due: dict[str, tuple[float, int]] = {}
        self.told_s: dict[str, list[float | None]] = {}
        self.let_in_s: dict[str, float] = {}
        self.refused_s: dict[str, float] = {}

    def come(self, name: str, num_outputs: int) -> None:
        """Ask once; where refused, come again when told, or after 2 s."""
        refusal = self.scheduler.add(request(name, NUM_PROMPT, num_outputs), self.now)
        if refusal is None:
            self.let_in_s[name] = self.now
            return
        self.refused_s.setdefault(name, self.now)
        self.told_s.setdefault(name, []).append(refusal.wait_s)
        wait_s = 2.0 if refusal.wait_s is None else refusal.wait_s
        self.due[name] = self.now + wait_s, num_outputs

    def step(self) -> None:
        step = self.scheduler.schedule(self.now)
        self.now += STEP_S + TOKEN_S * step.num_tokens
        self.scheduler.update(step, result_of(step), self.now)

    def run(self) -> None:
        """Until all have been let in and served."""
        while self.scheduler.has_work or self.due:
            for name, (due_s, num_outputs) in list(self.due.items()):
                if due_s <= self.now:
                    del self.due[name]
                    self.come(name, num_outputs)
            if self.scheduler.has_work:
                self.step()
            else:
                self.now = min(due_s for due_s, _ in self.due.values())

    def ratios(self) -> list[float]:
        """For each who was refused, what was told first over the time until it was let in."""
        return [
            (told[0] or 0.0) / (self.let_in_s[name] - self.refused_s[name])
            for name, told in self.told_s.items()
        ]


@settings(deadline=None, max_examples=30)
@given(
    max_num_seqs=st.integers(2, 8),
    num_queued=st.integers(4, 20),
    num_clients=st.integers(60, 120),
    num_outputs=st.integers(3, 40),
)
@example(max_num_seqs=8, num_queued=4, num_clients=120, num_outputs=40)
def test_in_the_median_a_crowd_is_told_the_truth(
    max_num_seqs: int, num_queued: int, num_clients: int, num_outputs: int
) -> None:
    crowd = Crowd(max_num_seqs=max_num_seqs, max_num_queued_reqs=num_queued)
    crowd.come("one", num_outputs)
    crowd.run()
    for index in range(num_clients):
        crowd.come(f"c{index:03}", num_outputs)
        if index % 10 == 9:
            crowd.step()
    crowd.run()
    assert len(crowd.let_in_s) == num_clients + 1
    ratios = crowd.ratios()
    assert ratios and 0.5 <= median(ratios) <= 2


def test_appointments_follow_one_another_and_are_bounded() -> None:
    crowd = Crowd(max_num_seqs=2, max_num_queued_reqs=3)
    for index in range(5):
        crowd.come(f"b{index}", 60)
    crowd.come("new", 20)
    assert crowd.told_s["new"] == [None]
    crowd.step()
    for index in range(3500):
        crowd.come(f"{index:04}", 60)
    told = [wait_s for name, (wait_s,) in crowd.told_s.items() if name != "new"]
    assert all(wait_s is not None for wait_s in told)
    waits_s = [wait_s or 0.0 for wait_s in told]
    assert waits_s == sorted(waits_s) and 0 < waits_s[0] < waits_s[1]
    assert waits_s[-1] == MAX_AHEAD_S


def test_a_queue_with_much_room_has_no_appointments() -> None:
    crowd = Crowd(max_num_seqs=1, max_num_queued_reqs=4)
    crowd.come("one", 20)
    crowd.run()
    for index in range(100):
        crowd.come(f"c{index:03}", 20)
    (longest,) = crowd.told_s["c099"]
    assert longest is not None
    crowd.due.clear()  # they never come again
    crowd.run()
    for index in range(6):
        crowd.come(f"d{index}", 20)
    (told,) = crowd.told_s["d5"]
    assert told is not None and told < longest / 10


def test_who_gets_in_untold_takes_a_place_that_somebody_was_told_of() -> None:
    crowd = Crowd(max_num_seqs=1, max_num_queued_reqs=4)
    crowd.come("one", 20)
    crowd.run()
    for index in range(5):
        crowd.come(f"b{index}", 20)
    crowd.step()
    for index in range(40):
        crowd.come(f"r{index:02}", 20)
    before_last, last = (crowd.due[name][0] for name in ("r38", "r39"))
    for index in range(10):  # as often a place is free somebody comes who was not told to
        while crowd.scheduler.stats.num_waiting == 4:
            crowd.step()
        crowd.come(f"n{index}", 20)
    assert set(crowd.let_in_s) >= {f"n{index}" for index in range(10)}
    crowd.come("late", 20)
    assert crowd.due["late"][0] - last > 1.5 * (last - before_last)
