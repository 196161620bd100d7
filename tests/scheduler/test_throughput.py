"""How fast the waiting queue moves, by the steps that left someone waiting."""

import pytest

from quire.scheduler.step import Step
from quire.scheduler.throughput import ThroughputEstimate


class Clock:
    """Steps of an estimate, one after the other."""

    def __init__(self) -> None:
        self.throughput, self._now, self._number = ThroughputEstimate(), 0.0, 0

    def step(self, num_tokens: int, seconds: float, *, leaves_someone: bool = True) -> None:
        self._number += 1
        self.throughput.begin(self._number, self._now, leaves_someone=leaves_someone)
        self._now += seconds
        self.throughput.end(Step(self._number, (), (), (), num_tokens), self._now)


def test_only_steps_that_leave_someone_waiting_count() -> None:
    clock = Clock()
    clock.step(5, 1.0, leaves_someone=False)
    clock.step(0, 1.0)
    assert clock.throughput.tokens_per_s is None
    clock.step(100, 0.5)
    assert clock.throughput.tokens_per_s == pytest.approx(200)


def test_a_new_throughput_is_learnt_and_one_odd_step_is_not_taken_for_it() -> None:
    clock = Clock()
    for _ in range(200):
        clock.step(100, 1.0)
    clock.step(100, 10.0)
    assert clock.throughput.tokens_per_s == pytest.approx(100, rel=0.4)
    for _ in range(200):
        clock.step(100, 0.1)
    assert clock.throughput.tokens_per_s == pytest.approx(1000, rel=0.01)


def test_a_step_counts_from_the_end_of_its_forerunner() -> None:
    throughput = ThroughputEstimate()
    throughput.begin(1, 0.0, leaves_someone=True)
    throughput.begin(2, 1.0, leaves_someone=True)
    assert throughput.num_under_way == 2
    assert throughput.end(Step(1, (), (), (), 10), 4.0) == 4.0
    assert throughput.end(Step(2, (), (), (), 10), 6.0) == 2.0
    assert throughput.num_under_way == 0


def test_the_pace_tells_of_what_is_between_steps() -> None:
    throughput = ThroughputEstimate()
    assert throughput.pace == 1
    for number in range(1, 5):
        throughput.begin(number, 10.0 * number, leaves_someone=True)
        throughput.end(Step(number, (), (), (), 10), 10.0 * number + 8)
    assert throughput.pace == pytest.approx(10 / 8)
    throughput.begin(5, 1000.0, leaves_someone=False)
    throughput.end(Step(5, (), (), (), 10), 1001.0)
    throughput.begin(6, 2000.0, leaves_someone=True)
    throughput.end(Step(6, (), (), (), 10), 2001.0)
    assert throughput.pace == pytest.approx(10 / 8)
