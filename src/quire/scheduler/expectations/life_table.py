"""A life table says how long outputs get: of those that reach a length, the share that ends there.

    tokens      reached   ended   goes on
    1 .. 64     100       10      90 %
    65 .. 96     90       45      45 %      20 of the others were cut at 80 tokens: of what they
    97 .. 128    25       25       0 %      would have had, only the first half is known

An output that was cut, by `max_tokens` say, counts only as far as it came: the actuarial estimate
of Kaplan and Meier (Nonparametric Estimation from Incomplete Observations, 1958, section 3).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

EDGES = (*range(4), *chain.from_iterable((2**n, 3 * 2 ** (n - 1)) for n in range(2, 21)))
"""The lengths between which outputs are counted together: two for each doubling."""
DECAY = 0.98
"""The decay of older outputs with each new one: about fifty count."""

Hazard: TypeAlias = Callable[[int], float]
"""The share that ends within an interval, of those that reach it, by the number of the interval."""


class LifeTable:
    """Counts of outputs: `exposed` to each interval between EDGES, and `ended` in it."""

    def __init__(self) -> None:
        self.exposed = [0.0] * (len(EDGES) - 1)
        self.ended = [0.0] * (len(EDGES) - 1)

    @property
    def num_seen(self) -> float:
        """The outputs that count, older ones in part."""
        return self.exposed[0]

    def observe(self, num_tokens: int, *, is_cut: bool) -> None:
        """Learn from an output of `num_tokens`, 1 or more; it might have gone on if it `is_cut`."""
        self.fade()
        length = min(num_tokens, EDGES[-1])
        last = bisect_left(EDGES, length) - 1
        for index in range(last):
            self.exposed[index] += 1
        low, high = EDGES[last], EDGES[last + 1]
        self.exposed[last] += (length - low) / (high - low) if is_cut else 1
        self.ended[last] += not is_cut

    def fade(self) -> None:
        """Let all that was observed count less."""
        self.exposed = [DECAY * each for each in self.exposed]
        self.ended = [DECAY * each for each in self.ended]

    def hazard(self, index: int, *, prior: float = 0.0, weight: float = 0.0) -> float:
        """Return the share that ends in an interval, with a prior share of so much weight; 0 where
        nothing is known."""
        exposed = self.exposed[index] + weight
        return (self.ended[index] + weight * prior) / exposed if exposed else 0.0


class _Piece(NamedTuple):
    """A part of an interval, and the shares of outputs that reach its beginning and its end."""

    low: float
    high: float
    reach_low: float
    reach_high: float


def mean_length(hazard: Hazard, least: int, most: int) -> float:
    """Return the mean length of outputs that have `least` tokens at least and are cut at `most`."""
    least = min(least, most)
    pieces = _pieces(hazard, least, most)
    return least + sum((p.high - p.low) * (p.reach_low + p.reach_high) / 2 for p in pieces)


def low_length(hazard: Hazard, share: float, least: int, most: int) -> int:
    """Return a length, between `least` and `most`, that less than a `share` of outputs stays
    below: the least of the interval in which the share is reached."""
    for piece in _pieces(hazard, 0, most):
        if piece.reach_high <= 1 - share:
            return min(max(int(piece.low) + 1, least), most)
    return most


def _pieces(hazard: Hazard, first: int, last: int) -> Iterator[_Piece]:
    """Yield the parts of the intervals between two lengths; the share is even within each."""
    reach = 1.0
    for index in range(len(EDGES) - 1):
        low, high = EDGES[index], EDGES[index + 1]
        if low >= last:
            return
        lost = reach * hazard(index)
        start, end = max(low, first), min(high, last)
        if end > start:
            width = high - low
            yield _Piece(
                start, end, reach - lost * (start - low) / width, reach - lost * (end - low) / width
            )
        reach -= lost
