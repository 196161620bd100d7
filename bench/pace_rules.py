"""Rules of other schedulers for the share of prompts in a step, to compare Quire's with.

They are seats in Quire's own scheduler, so what else differs between schedulers (admission,
preemption, the prefix cache) is the same for all: requests run in the order in which they came, and
all outputs of running requests go first.
"""

from collections.abc import Callable, Iterable

from quire.scheduler.pacing.pace import LEAST_TOKENS, NO_LIMIT, PromptShare
from quire.scheduler.pacing.step_times import LearnedStepTimes
from quire.scheduler.request import Request

UNDER_PRESSURE = 2
"""The number of prompts from which on P-PAS computes fewer tokens beside outputs."""


class FixedBudget:
    """Prompts get what outputs leave of the step's budget, whatever that takes: vLLM's rule, and
    Quire's before steps were sized by time. `threshold` is vLLM's `long_prefill_token_threshold`:
    the tokens of one prompt in a step."""

    def __init__(self, threshold: int = NO_LIMIT) -> None:
        self.times = LearnedStepTimes()
        self.latest: PromptShare | None = None
        self._share = PromptShare(most_of_one=threshold)

    def share(self, running: Iterable[Request], pace: float) -> PromptShare:
        """Return the same share for each step."""
        return self._share


class DecodeFirst:
    """Prompts get a few tokens of each step while there are outputs, and all of it otherwise."""

    def __init__(self, num_beside: int) -> None:
        self.times = LearnedStepTimes()
        self.latest: PromptShare | None = None
        self._beside = PromptShare(num_beside)

    def share(self, running: Iterable[Request], pace: float) -> PromptShare:
        """Return the share of prompts beside the outputs of those running."""
        return self._beside if any(map(_decodes, running)) else PromptShare()


class PrefillPressure:
    """P-PAS, as its authors describe it (vLLM's RFC 52906): the budget of a step falls to
    `num_capped` tokens while two prompts or more are active and outputs run.

    Prompts that wait count as active: where prompts are computed one after another, hardly ever do
    two run at once, so that the rule would do nothing.
    """

    def __init__(self, num_capped: int, num_waiting: Callable[[], int]) -> None:
        self.times = LearnedStepTimes()
        self.latest: PromptShare | None = None
        self._num_capped = num_capped
        self._num_waiting = num_waiting

    def share(self, running: Iterable[Request], pace: float) -> PromptShare:
        """Return the share of prompts under the pressure of this moment."""
        decodes = [_decodes(request) for request in running]
        num_outputs = sum(decodes)
        num_prompts = len(decodes) - num_outputs + self._num_waiting()
        if num_outputs and num_prompts >= UNDER_PRESSURE:
            return PromptShare(max(self._num_capped - num_outputs, LEAST_TOKENS))
        return PromptShare()


def _decodes(request: Request) -> bool:
    """Return whether a running request has its prompt computed."""
    num_left = len(request.token_ids) + request.num_pending - request.num_computed
    return num_left <= 1 and bool(request.num_outputs or request.num_pending)
