"""Foresees the earliest end of a new request: after the prompts ahead of it, its own prompt and its
own output. A deadline before that is refused, with the numbers.

Each part is rather too short than too long, so that nobody is refused who would have been in time:
prompts ahead count without the share that is usually cached, the output has as few tokens as one in
ten of its kind, and the own parts are less the error of predictions. Of outputs of those ahead
nothing is counted.
"""

from typing import NamedTuple

from quire.scheduler.accounts import HitRate
from quire.scheduler.expectations.service import ExpectedService
from quire.scheduler.pacing.pace import MARGIN_OF_ERROR, MOST_MARGIN
from quire.scheduler.pacing.step_work import StepWork
from quire.scheduler.prefix_waits import PrefixWaits
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request
from quire.scheduler.running import RunningSet
from quire.scheduler.step import Refusal
from quire.scheduler.throughput import ThroughputEstimate


class TimeNeeded(NamedTuple):
    """The seconds that a new request needs at least: for `num_ahead` tokens ahead of it, for the
    `num_prompt` of its prompt that are not cached, and for `num_outputs`, which take `token_s`
    each. What is not known takes no time."""

    ahead_s: float
    num_ahead: int
    prompt_s: float
    num_prompt: int
    token_s: float
    num_outputs: int

    @property
    def first_token_s(self) -> float:
        return self.ahead_s + self.prompt_s

    @property
    def own_s(self) -> float:
        """Seconds without those for what is ahead."""
        return self.prompt_s + self.token_s * max(self.num_outputs - 1, 0)

    @property
    def end_s(self) -> float:
        return self.ahead_s + self.own_s

    def __str__(self) -> str:
        parts = [
            (self.ahead_s, f"for {self.num_ahead} tokens of prompts ahead of it"),
            (self.prompt_s, f"for {self.num_prompt} of its own prompt"),
            (
                self.own_s - self.prompt_s,
                f"for {self.num_outputs} of its output, as few as one in ten such has, at "
                f"{1000 * self.token_s:.1f} ms each",
            ),
        ]
        return ", ".join(f"{seconds:.1f} s {what}" for seconds, what in parts if seconds > 0)


class Foresight:
    """Foresees times, and refuses requests whose deadline is before their end. It changes nothing
    but how much is known of outputs (`OutputExpectations.note_refusal`)."""

    def __init__(
        self,
        service: ExpectedService,
        prefix_waits: PrefixWaits,
        waiting: WaitingQueue,
        running: RunningSet,
        throughput: ThroughputEstimate,
        recent: HitRate,
    ) -> None:
        self._service = service
        self._prefix_waits = prefix_waits
        self._waiting = waiting
        self._running = running
        self._throughput = throughput
        self._recent = recent

    def refusal(self, request: Request) -> Refusal | None:
        """Return a refusal if the deadline of a new request is before its earliest end. Where that
        comes of what is ahead of it, `wait_s` says when less will be."""
        new, limit_s = request.new, request.new.time_limit_s
        if limit_s is None:
            return None
        if not limit_s > 0:
            message = f"the time limit is {limit_s:g} s, it must be above 0"
            return Refusal(new.id, Reason.DEADLINE_HOPELESS, message)
        needed = self.time_needed(request)
        if needed.end_s <= limit_s:
            return None
        if needed.first_token_s <= limit_s:
            self._service.outputs.note_refusal(new)
        message = (
            f"it takes {needed.end_s:.1f} s at least, {needed}; the time limit is {limit_s:g} s"
        )
        wait_s = needed.end_s - limit_s if needed.own_s <= limit_s else None
        return Refusal(new.id, Reason.DEADLINE_HOPELESS, message, wait_s=wait_s)

    def time_needed(self, request: Request) -> TimeNeeded:
        """Return the least time that a new request needs, as far as that is known."""
        new, outlook = request.new, request.outlook
        num_found = self._prefix_waits.num_coming(request) if outlook is None else outlook.num_found
        num_ahead = int(self._waiting.num_tokens_ahead(request) * (1 - self._recent.rate))
        sure = 1 - min(MARGIN_OF_ERROR * self._service.times.error, MOST_MARGIN)
        return TimeNeeded(
            self._throughput.seconds_for(num_ahead),
            num_ahead,
            sure * self._service.prompt_s(request.num_prompt_tokens, num_found),
            max(request.num_prompt_tokens - num_found, 1),
            sure * self._token_s(request, is_busy=num_ahead > 0),
            self._service.outputs.low(new),
        )

    def _token_s(self, request: Request, *, is_busy: bool) -> float:
        """Return the seconds between two tokens of an output: alone, or beside those that run now
        where others wait to follow them; 0 while unknown."""
        beside = list(self._running) if is_busy else []
        num_context = request.num_prompt_tokens + sum(each.num_computed for each in beside)
        num_seqs = len(beside) + 1
        step_s = self._service.times.seconds(StepWork(num_seqs, 0, num_seqs, num_context))
        return 0.0 if step_s is None else step_s
