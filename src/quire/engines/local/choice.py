"""The choice of an engine for a request, among a handful of one machine."""

from collections.abc import Iterable
from typing import NamedTuple

AFFINITY = 4.0
"""An engine that has seen more of a prompt may have so much more work ahead for each token of it:
what it saves now, it saves again for those that come after."""


class Candidate(NamedTuple):
    """An engine that a request may go to.

    number: that of the engine. num_matched: tokens of the prompt that it has seen. work_ahead: what
        it does before the request. work: all that it has to do. num_routed: prompt tokens that were
        new to it and that it was given so far.
    """

    number: int
    num_matched: int
    work_ahead: float
    work: float
    num_routed: int


def choose(candidates: Iterable[Candidate]) -> int:
    """Return the number of the engine that the request goes to: the one that has seen most of its
    prompt, unless that has clearly more work ahead of it, else the one with the least. Where all is
    equal, the one that was given least is, so that caches fill alike."""
    best = min(
        candidates,
        key=lambda each: (
            each.work_ahead - AFFINITY * each.num_matched,
            each.work,
            each.num_routed,
            each.number,
        ),
    )
    return best.number
