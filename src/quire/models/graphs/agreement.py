"""Ranks capture the same steps: one that a rank replays the others replay too, or their collectives
would not meet. So each attempt to capture a step ends for all of them as it did for the worst.
"""

from enum import IntEnum

import torch

from quire.models.parallel.ranks import Ranks


class CaptureOutcome(IntEnum):
    """The end of an attempt at a step, from good to bad: it is done, there is no memory for it, or
    no step of its kind can be captured."""

    DONE = 0
    NO_MEMORY = 1
    REFUSED = 2


class RefusedByRank(RuntimeError):
    """Raised if another rank cannot capture a step that this one can."""

    def __init__(self) -> None:
        super().__init__("another rank cannot capture it, and its log says why")


def worst_outcome(ranks: Ranks | None, own: CaptureOutcome) -> CaptureOutcome:
    """Return the worst outcome of `ranks`, which all make the same attempt, or one's `own` where
    there are none. Raises RankLost."""
    if ranks is None:
        return own
    outcomes = ranks.gather(torch.tensor([own], device=ranks.device), [1] * ranks.size)
    return CaptureOutcome(int(outcomes.max()))
