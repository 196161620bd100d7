"""A server under attacks that are soon made still answers everyone, and keeps nothing of them.

`python -m tests.e2e.hostile` makes all attacks, and measures against the aims; here only what does
not depend on how busy the machine is can be a failure, and what takes seconds where it should take
none.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.hostile.attacks import ATTACKS
from tests.e2e.hostile.measure import Arena, Hold, LoopLags, arena, longest_hold
from tests.e2e.hostile.target import Attack
from tests.long import long_but_for

HELD = (
    "endless header line",
    "endless request line",
    "endless trailer",
    "one-byte chunks",
    "bad chunk size",
    "misspelt Transfer-Encoding",
    "pipelined upgrades",
    "contradicting lengths",
    "no HTTP",
    "list of stop strings",
    "texts for token ids",
    "unknown fields",
    "one field again and again",
    "huge numbers",
    "malformed bodies",
    "big bodies without a key",
    "connections that end",
    "resets within bodies",
    "resets within streams",
    "a thousand at once",
    "stop strings",
    "stop strings, four times",
    "log probabilities of outputs",
    "full queue",
    "deadlines",
    "foreign timelines",
)
"""What no longer does harm, and takes little time."""
IN_EVERY_RUN = (
    "endless request line",
    "contradicting lengths",
    "connections that end",
    "full queue",
)
"""The attacks of every run, which stand for the kinds there are: lines and lengths that are no
HTTP, connections, work; tests/server has wrong fields. `make long` makes the others too."""
MOST_LIVEZ_S = 5.0
MOST_PEAK_MB = 300.0
MOST_KEPT_MB = 100.0
SETTLE_S = 20.0
BOUNDS = (0.01, 0.02, 0.05, float("inf"))


class Ground:
    """The server that the attacks are made on; a new one is started where the one before died."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._arena: Arena | None = None

    def arena(self) -> Arena:
        if self._arena is None or not self._arena.is_fit:
            self._stack.close()
            self._arena = self._stack.enter_context(arena())
        return self._arena


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(stack)


@long_but_for(IN_EVERY_RUN, "name", HELD)
def test_attack_is_answered_and_harms_nobody(name: str, ground: Ground) -> None:
    (attack,) = [each for each in ATTACKS if each.name == name]
    outcome = ground.arena().undergo(attack, calm_s=0.2, settle_s=SETTLE_S, settled_mb=MOST_KEPT_MB)
    assert outcome.survived
    assert attack.surprises(outcome.answers) == []
    assert outcome.num_livez_failed == 0
    assert outcome.num_streams_failed == 0
    assert outcome.livez_own_s < MOST_LIVEZ_S
    assert outcome.peak_mb < MOST_PEAK_MB
    assert outcome.kept_mb <= MOST_KEPT_MB


def test_every_attack_has_a_name_of_its_own() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)


def test_an_answer_that_no_one_expects_is_told() -> None:
    attack = Attack("x", "x", ("400", "503"), lambda target: None)
    answers = Counter({"400 invalid_json": 2, "500 internal": 1, "closed": 1})
    assert attack.surprises(answers) == ["500 internal", "closed"]


@pytest.mark.parametrize(
    ("counts", "longest_s", "hold"),
    [
        ((5, 5, 5, 5), 0.015, Hold(0.015, is_bound=True)),  # no lag since
        ((9, 9, 9, 9), 0.015, Hold(0.01, is_bound=True)),  # the longest is of before
        ((9, 10, 11, 11), 0.03, Hold(0.03)),  # it is a new one
        ((9, 10, 11, 11), 0.012, Hold(0.012, is_bound=True)),  # a longer one was forgotten
        ((5, 5, 5, 6), 0.3, Hold(0.3)),
    ],
)
def test_the_longest_hold_is_that_of_the_attack(
    counts: tuple[float, ...], longest_s: float, hold: Hold
) -> None:
    before = LoopLags(BOUNDS, (5, 5, 5, 5), 0.015)
    assert longest_hold(before, LoopLags(BOUNDS, counts, longest_s)) == hold
