"""A request that has not ended, with all that another engine needs to go on with it."""

from array import array
from dataclasses import dataclass, field, replace

from quire.engine.messages import Submit
from quire.engines.process.token_stream import TokenStream
from quire.scheduler.reasons import PREEMPTIONS, Reason
from quire.scheduler.request import Event, NewRequest, ResumedOutput
from quire.scheduler.step import Delta, Finish

PASSED_BY = 8
"""A request is past the point of a crash by so many tokens: what a step may add is one, or a few
that its grammar decides."""
_REUSES = (Reason.ADMITTED, Reason.FORKED)


@dataclass(slots=True, eq=False)
class SubmittedRequest:
    """One request from its submission to its end.

    submitted_s: when it was submitted, in seconds of the clock that engines share.
    token_ids: the output that was handed to its stream.
    num_scored: the prompt tokens whose log probabilities were, the first counted.
    timeline: its events so far.
    is_handed_over: the engine that runs now has it. is_aborted: and was told to end it.
    is_withdrawn: it was told so, but the request is to go on later.
    num_at_crash: the tokens of its output when an engine last ended.
    num_moves: how many supervisors have given it back.
    """

    request: NewRequest
    stream: TokenStream
    submitted_s: float
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    num_scored: int = 1
    timeline: list[Event] = field(default_factory=list)
    is_handed_over: bool = False
    is_aborted: bool = False
    is_withdrawn: bool = False
    num_at_crash: int = 0
    num_moves: int = 0

    @property
    def id(self) -> str:
        return self.request.id

    def resume(self, resumed: ResumedOutput) -> None:
        """Take over what was handed out of the output elsewhere: an engine has accepted it."""
        self.token_ids.extend(resumed.output_token_ids)
        self.num_scored = resumed.num_scored
        self.timeline.extend(resumed.timeline)
        self.num_at_crash = len(self.token_ids)
        self.stream.accept()

    def put(self, delta: Delta) -> None:
        """Hand a delta to the stream, and keep what another engine must know of it."""
        token_ids = delta.token_ids
        if len(token_ids) == 1:
            self.token_ids.append(token_ids[0])
        else:
            self.token_ids.extend(token_ids)
        if delta.prompt_logprobs:
            self.num_scored += len(delta.prompt_logprobs)
        self.stream.put(delta)

    @property
    def has_passed(self) -> bool:
        """Whether it is some tokens past the point where it was when an engine last ended."""
        return len(self.token_ids) >= self.num_at_crash + PASSED_BY

    def is_late(self, now: float) -> bool:
        """Return whether its time limit has passed."""
        limit_s = self.request.time_limit_s
        return limit_s is not None and now - self.submitted_s > limit_s

    def submission(self, now: float) -> Submit:
        """Return the message that hands the request to an engine: behind its output if one has
        accepted it before, else with what is left of its time."""
        if self.stream.is_accepted:
            resumed = ResumedOutput(tuple(self.token_ids), self.num_scored, tuple(self.timeline))
            return Submit(self.request, resumed)
        limit_s = self.request.time_limit_s
        if limit_s is None:
            return Submit(self.request)
        left_s = max(self.submitted_s + limit_s - now, 0.0)
        return Submit(replace(self.request, time_limit_s=left_s))

    def finish(self, reason: Reason, now: float) -> Delta:
        """Return the last delta of a request that ends now without an engine."""
        first = {event.reason: event.time_s for event in reversed(self.timeline)}
        admitted_s = min((first[each] for each in _REUSES if each in first), default=now)
        first_token_s = first.get(Reason.FIRST_TOKEN, now)
        cached = [event.number for event in self.timeline if event.reason in _REUSES]
        account = Finish(
            reason=reason,
            number=self.token_ids[-1] if self.token_ids else 0,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=len(self.token_ids),
            num_cached_tokens=cached[0] if cached else 0,
            num_preemptions=sum(event.reason in PREEMPTIONS for event in self.timeline),
            queue_s=admitted_s - first.get(Reason.QUEUED, self.submitted_s),
            prefill_s=first_token_s - admitted_s,
            decode_s=now - first_token_s,
            timeline=(*self.timeline, Event(now, reason, 0)),
        )
        return Delta(self.request.id, (), finish=account)
