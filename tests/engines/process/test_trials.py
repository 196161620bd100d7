"""The search for a request that crashes engines, played through with ids alone."""

from math import ceil, log2

from hypothesis import example, given
from hypothesis import strategies as st

from quire.engines.process.trials import Trials


class Play:
    """Engines with `ids` in them, of which `culprit` crashes each one that it runs in; `spurious`
    says of each run that would end well whether it crashes nevertheless."""

    def __init__(self, ids: list[str], culprit: str | None, spurious: list[bool]) -> None:
        self.trials = Trials()
        self.live = dict.fromkeys(ids)
        self.culprit = culprit
        self.spurious = spurious
        self.num_crashes = 0
        self.crashed_alone: set[str] = set()
        self.convicted: list[str] = []

    def run(self) -> None:
        """Until all may run, and nothing crashes."""
        while True:
            group = self.trials.group
            running = [id for id in (self.live if group is None else group) if id in self.live]
            if self._crashes(running):
                self.num_crashes += 1
                if len(running) == 1:
                    self.crashed_alone.add(running[0])
                convicted = self.trials.on_crash(running, self.live)
                if convicted is not None:
                    self.convicted.append(convicted)
                    del self.live[convicted]
                    assert self.trials.group is None
            elif group is None:
                return
            else:
                self.trials.pass_group()

    def _crashes(self, running: list[str]) -> bool:
        if self.culprit in running:
            return True
        return bool(running) and bool(self.spurious) and self.spurious.pop()


sizes = st.integers(1, 40)


@given(st.data(), sizes)
def test_the_one_that_crashes_is_found_and_nobody_else(data: st.DataObject, size: int) -> None:
    ids = [f"r{number}" for number in range(size)]
    culprit = data.draw(st.sampled_from(ids))
    play = Play(ids, culprit, [])
    play.run()
    assert play.convicted == [culprit]
    assert play.num_crashes <= 2 + ceil(log2(size))


def test_one_among_21_takes_7_crashes_at_most() -> None:
    ids = [f"r{number}" for number in range(21)]
    found = []
    for culprit in ids:
        play = Play(ids, culprit, [])
        play.run()
        assert play.convicted == [culprit]
        found.append(play.num_crashes)
    assert max(found) == 7


@given(st.data(), sizes, st.lists(st.booleans(), max_size=30), st.booleans())
def test_crashes_of_nobody_convict_nobody_who_was_not_alone(
    data: st.DataObject, size: int, spurious: list[bool], has_culprit: bool
) -> None:
    ids = [f"r{number}" for number in range(size)]
    culprit = data.draw(st.sampled_from(ids)) if has_culprit else None
    play = Play(ids, culprit, spurious)
    play.run()
    assert set(play.convicted) <= play.crashed_alone
    assert culprit is None or culprit in play.convicted


@given(sizes, sizes, st.data())
@example(3, 2, None)
def test_only_those_that_ran_in_both_crashes_are_suspects(
    first: int, second: int, data: st.DataObject | None
) -> None:
    ids = [f"r{number}" for number in range(first + second)]
    shared = 1 if data is None else data.draw(st.integers(0, min(first, second)))
    trials = Trials()
    assert trials.on_crash(ids[:first], ids) is None
    assert trials.group is None
    convicted = trials.on_crash(ids[first - shared : first + second - shared], ids)
    if second == 1 and shared == 1:
        assert convicted == ids[first - 1]
    else:
        assert convicted is None and trials.num_suspects == shared


def test_those_that_have_ended_are_no_suspects() -> None:
    trials = Trials()
    assert trials.on_crash(["a", "b", "c"], ["a", "b", "c"]) is None
    assert trials.on_crash(["a", "b", "c"], ["b", "c", "d"]) is None
    assert trials.num_suspects == 2
    assert trials.on_crash([], ["b", "c"]) is None, "it crashed before anybody ran"
    assert trials.group == ("b",)


def test_who_has_passed_its_crash_has_not_crashed_before() -> None:
    trials = Trials()
    for _ in range(5):
        assert trials.on_crash(["alone"], {"alone"}) is None
        assert trials.group is None
        trials.on_passed(["alone"])


def test_a_trial_that_crashes_goes_on_without_those_that_have_passed() -> None:
    trials, ids = Trials(), ["a", "b"]
    trials.on_crash(ids, ids)
    trials.on_crash(ids, ids)
    assert trials.group == ("a",)
    trials.on_passed(["a"])
    assert trials.on_crash(["a"], ids) is None
    trials.pass_group()
    assert trials.group == ("b",)
    assert trials.on_crash(["b"], ids) == "b"
