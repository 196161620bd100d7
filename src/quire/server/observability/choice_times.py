"""Times the tokens of a request with latency targets by its timeline, as the engine counts them."""

from dataclasses import dataclass

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.step import Finish


@dataclass(slots=True)
class ChoiceTimes:
    """The targets of a choice in seconds, None for none, and when it was queued and had its first
    token, by the clock of the engine. `mean_itl_s` between its tokens, and the `num_late` of them
    that missed the target, are known once it has ended."""

    target_ttft_s: float | None
    target_itl_s: float | None
    queued_s: float | None = None
    first_token_s: float | None = None
    mean_itl_s: float | None = None
    num_late: int | None = None

    @property
    def ttft_s(self) -> float | None:
        """The seconds until the first token, None before it."""
        if self.queued_s is None or self.first_token_s is None:
            return None
        return self.first_token_s - self.queued_s

    def itl_s(self, num_outputs: int, now: float) -> float | None:
        """Return the mean seconds between the tokens by `now`, None before the second."""
        if self.num_late is not None:
            return self.mean_itl_s
        if self.first_token_s is None or num_outputs < 2:
            return None
        return max(now - self.first_token_s, 0.0) / num_outputs

    def note(self, event: Event) -> None:
        """Take in an event of the choice."""
        if event.reason is Reason.QUEUED and self.queued_s is None:
            self.queued_s = event.time_s
        elif event.reason is Reason.FIRST_TOKEN:
            self.first_token_s = event.time_s

    def end(self, finish: Finish) -> None:
        """Take in the account of the choice."""
        for event in finish.timeline:
            self.note(event)
        self.num_late = finish.num_late_tokens
        if finish.num_output_tokens > 1:
            self.mean_itl_s = finish.decode_s / (finish.num_output_tokens - 1)


def times_of(request: NewRequest) -> ChoiceTimes | None:
    """Return what times a request, None where it has no target."""
    if request.target_ttft_s is None and request.target_itl_s is None:
        return None
    return ChoiceTimes(request.target_ttft_s, request.target_itl_s)
