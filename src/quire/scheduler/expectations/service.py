"""The seconds of the machine that a request is expected to take from all others: those of its
tokens, and its part of the time that any step takes."""

from quire.scheduler.expectations.outputs import OutputExpectations
from quire.scheduler.pacing.step_times import LearnedStepTimes
from quire.scheduler.pacing.step_work import StepWork
from quire.scheduler.request import NewRequest


class ExpectedService:
    """Expects the seconds of requests from `outputs` and from the `times` of steps."""

    def __init__(self, outputs: OutputExpectations, times: LearnedStepTimes) -> None:
        self.outputs = outputs
        self.times = times

    def prompt_s(self, num_tokens: int, num_found: int) -> float:
        """Return the seconds of a prompt of `num_tokens` behind the `num_found` that need not be
        computed; 0 while unknown."""
        num_left = max(num_tokens - num_found, 1)
        pairs = num_left * num_found + num_left * (num_left + 1) // 2
        parts = self.times.parts(StepWork(1, num_left, num_prefill_pairs=pairs))
        return 0.0 if parts is None else parts.work_s

    def outputs_s(self, new: NewRequest, num_running: int) -> float:
        """Return the seconds of an output beside `num_running` others, which share what each step
        takes; 0 while unknown."""
        num_outputs = self.outputs.mean(new)
        context = len(new.prompt_token_ids) + int(num_outputs / 2)
        parts = self.times.parts(StepWork(1, 0, 1, context))
        if parts is None:
            return 0.0
        return max(num_outputs - 1, 0.0) * (parts.base_s / (num_running + 1) + parts.work_s)
