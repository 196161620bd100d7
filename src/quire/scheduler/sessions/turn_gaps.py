"""Learns how soon sessions come back after their turns, and how long it pays to keep what they will
find.

To keep a share of the pool for t seconds costs that share of the seconds, in which others would use
it; the return saves the seconds to compute the session's tokens again. So what is kept for at most
t gains

    F(t) x seconds saved - share of the pool x E[min(gap, t)]

and the best t is one of the gaps that were seen. Continuum (arXiv 2511.02230) keeps the cache of an
agent's tool calls by such a trade; F is here that of the session and its endpoint.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

MAX_GAPS = 64
"""So many recent gaps of an endpoint count."""
OWN_WEIGHT = 4
"""A session's own gaps count so many times as much as those of others."""
MAX_OWN = 8
"""So many recent gaps of a session count."""
MAX_KEPT_S = 300.0
"""Nothing is kept longer for a turn that nobody has announced."""
MARGIN = 1.25
"""Gaps are a little longer than the longest that was seen."""
PUBLISHED_GAPS_S = (
    *(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    *(4.0, 10.0),
    inf,
)
"""The gaps of an endpoint before any was seen: of an agent's calls 86 % come within a second of the
last answer, 95 % within ten (measured by the authors of vLLM's router, issue 285)."""


class TurnGap(NamedTuple):
    """The seconds between the end of a turn and the next, infinite while it has not come."""

    ended_s: float
    seconds: float = inf


class TurnGaps:
    """The recent gaps behind turns of one kind, numbered in their order."""

    def __init__(self, assumed: Sequence[float] = PUBLISHED_GAPS_S) -> None:
        self._gaps = {number: TurnGap(-inf, seconds) for number, seconds in enumerate(assumed)}
        self._next = len(assumed)

    def begin(self, now: float) -> int:
        """Note the end of a turn, and return the number of its gap."""
        number, self._next = self._next, self._next + 1
        self._gaps[number] = TurnGap(now)
        if len(self._gaps) > MAX_GAPS:
            del self._gaps[next(iter(self._gaps))]
        return number

    def end(self, number: int, now: float) -> None:
        """Note that the next turn has come."""
        gap = self._gaps.get(number)
        if gap is not None:
            self._gaps[number] = gap._replace(seconds=now - gap.ended_s)

    def odds_within(self, seconds: float, now: float) -> float:
        """Return the share of turns that were followed by another within so many seconds; 0 where
        nothing is known."""
        gaps = [each.seconds for each in self._seen(seconds, now)]
        return sum(each <= seconds for each in gaps) / len(gaps) if gaps else 0.0

    def best_hold_s(
        self, own: Sequence[float], saved_s: float, pool_share: float, now: float
    ) -> float:
        """Return for how many seconds the cache of a session should be kept, 0 for not at all,
        where its return would save `saved_s` and it takes a share of the pool. `own` are its past
        gaps."""
        best_s = best_gain = 0.0
        times = {gap.seconds for gap in self._gaps.values()} | set(own)
        for hold_s in sorted(each for each in times if each <= MAX_KEPT_S):
            gaps = [gap.seconds for gap in self._seen(hold_s, now)]
            gaps += [each for each in own for _ in range(OWN_WEIGHT)]
            num_back = sum(each <= hold_s for each in gaps)
            kept_s = sum(min(each, hold_s) for each in gaps)
            gain = (num_back * saved_s - pool_share * kept_s) / len(gaps)
            if gain > best_gain:
                best_s, best_gain = hold_s, gain
        return MARGIN * best_s

    def _seen(self, seconds: float, now: float) -> list[TurnGap]:
        """Return the gaps of which it is known whether they were longer than this."""
        gaps = self._gaps.values()
        return [each for each in gaps if each.seconds < inf or now - each.ended_s >= seconds]
