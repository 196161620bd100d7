"""Decides how many tokens of prompts a step computes beside running outputs, so that these keep
their pace: that which their requests ask for, or some times that of a step without prompts.

    outputs of 8 requests, 30 ms a step;     within 90 ms go 8 tokens of outputs and 180 of
    a prompt of 1,024 tokens waits           prompts: the prompt is computed in six steps
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from quire.scheduler.pacing.step_times import LearnedStepTimes, PromptTime
from quire.scheduler.pacing.step_work import StepWork
from quire.scheduler.request import Request

STALL = 8.0
"""Without a target, a step with prompts takes at most so many times the time of one without. Three
times would halve the time between tokens beside prompts, and cost a CPU a quarter of its tokens a
second there (decision 138)."""
LEAST_TOKENS = 16
"""Prompts get so many tokens of each step, whatever the targets are, so that they end."""
MARGIN_OF_ERROR, MOST_MARGIN = 2.0, 0.5
"""A target is undercut by so many times the mean error of predictions, by this share at most."""
NO_LIMIT = 1 << 62
WHOLE_TILES = 32
"""More tokens are rounded down to a multiple of it."""


def whole_tiles(num_tokens: int) -> int:
    """Return so many tokens, rounded down to whole tiles where that leaves some."""
    return num_tokens - num_tokens % WHOLE_TILES if num_tokens > WHOLE_TILES else num_tokens


class PromptShare(NamedTuple):
    """The tokens of prompts that a step may compute; None for as many as it has room for. The
    request `tightest` has the target that sets them, empty where none has one. Of prompts of
    running requests that let nobody by `num_begun` tokens are left. Of one prompt `most_of_one`
    tokens are computed at most. Where seconds set them, `time` has those that prompts may take,
    once it is known what tokens cost."""

    num_tokens: int | None = None
    tightest: str = ""
    num_begun: int = 0
    most_of_one: int = NO_LIMIT
    time: PromptTime | None = None


class PaceRule(Protocol):
    """Chooses the share of prompts in each step. The scheduler has `Pace`; benchmarks compare it
    with others. The steps that were taken are told to its `times`; `latest` is the share of prompts
    in the newest, None where it had no prompts to compute."""

    times: LearnedStepTimes
    latest: PromptShare | None

    def share(self, running: Iterable[Request], pace: float) -> PromptShare:
        """Return the share of prompts in the next step beside the outputs of those running. `pace`
        is the time that passes for each second of steps."""
        ...


class Pace:
    """Chooses the share of prompts by latency targets, or by the time of a step without."""

    def __init__(self) -> None:
        self.times = LearnedStepTimes()
        self.latest: PromptShare | None = None

    def share(self, running: Iterable[Request], pace: float) -> PromptShare:
        """Return the share of prompts in the next step beside the outputs of those running. `pace`
        is the time that passes for each second of steps."""
        num_seqs = num_context = chunk_context = num_begun = 0
        target_s, tightest, is_free = 0.0, "", False
        for request in running:
            if request.is_in_prompt:
                if not request.lets_others_by:
                    chunk_context = chunk_context or request.num_computed
                    num_begun += request.num_left
                continue
            num_seqs += 1
            num_context += request.num_computed + 1
            own_s = request.new.target_itl_s
            if own_s is None:
                is_free = True
            elif not tightest or own_s < target_s:
                target_s, tightest = own_s, request.id
        if not num_seqs:
            return PromptShare(num_begun=num_begun)
        work = StepWork(num_seqs, 0, num_seqs, num_context, 0)
        margin = 1 - min(MARGIN_OF_ERROR * self.times.error, MOST_MARGIN)
        within_s = target_s * margin / pace if tightest else None
        if is_free and (decode_s := self.times.seconds(work)) is not None:
            within_s = min(STALL * decode_s, within_s or STALL * decode_s)
            tightest = tightest if within_s < STALL * decode_s else ""
        if within_s is None:
            return PromptShare(num_begun=num_begun)
        time = self.times.prompt_time(work, within_s)
        most = whole_tiles(self.times.most_prompt_tokens(time, chunk_context))
        return PromptShare(max(most, LEAST_TOKENS), tightest, num_begun, time=time)
