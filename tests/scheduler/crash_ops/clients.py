"""The clients of engines that end: what each has had, and that it is what it should have."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, ResumedOutput
from quire.scheduler.step import Delta, Finish, Stats
from tests.scheduler.crash_ops.paper_runner import after, next_token, state_of

COMPUTED = (Reason.FIRST_TOKEN, Reason.PROMPT_COMPUTED)
BY_TIME = (Reason.ABORTED, Reason.DEADLINE_EXCEEDED)


@dataclass(slots=True)
class Client:
    """One request that was accepted: its output so far and the number after it."""

    new: NewRequest
    state: int
    token_ids: list[int] = field(default_factory=list)
    num_scored: int = 1
    events: list[Event] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, delta: Delta) -> None:
        assert self.finish is None, "a request ends once"
        for token_id in delta.token_ids:
            assert token_id == next_token(self.state, self.new.sampling.seed)
            self.state = after(self.state, token_id)
            self.token_ids.append(token_id)
        for score in delta.prompt_logprobs:
            assert score.token_id == self.new.prompt_token_ids[self.num_scored]
            assert score.logprob == -self.num_scored
            self.num_scored += 1
        self.finish = delta.finish

    @property
    def resumed(self) -> ResumedOutput:
        return ResumedOutput(tuple(self.token_ids), self.num_scored, tuple(self.events))

    def check_end(self) -> None:
        """The account is that of all engines together, and the end has its reason."""
        finish, new = self.finish, self.new
        assert finish is not None
        assert finish.timeline == tuple(self.events)
        times = [event.time_s for event in finish.timeline]
        assert times == sorted(times)
        assert finish.queue_s + finish.prefill_s + finish.decode_s == times[-1] - times[0]
        assert min(finish.queue_s, finish.prefill_s, finish.decode_s) >= 0
        assert finish.num_output_tokens == len(self.token_ids)
        if finish.reason not in BY_TIME:
            assert finish.reason is self._reason(len(self.token_ids))
            is_scored = new.prompt_logprobs is not None
            assert self.num_scored == (len(new.prompt_token_ids) if is_scored else 1)
        assert all(self._reason(num) is None for num in range(1, len(self.token_ids)))

    def _reason(self, num_outputs: int) -> Reason | None:
        """Why the output ends after so many tokens, or None."""
        stopping = self.new.stopping
        if stopping.max_tokens == 0:
            return Reason.PROMPT_COMPUTED
        if num_outputs and self.token_ids[num_outputs - 1] in stopping.eos_token_ids:
            return Reason.END_OF_SEQUENCE
        return Reason.MAX_TOKENS if num_outputs == stopping.max_tokens else None


@dataclass(slots=True)
class Clients:
    """All clients, in the order in which they were accepted; `gone` are those that do not wait for
    their end any more. `stats` are the last accounts that each engine told."""

    of: dict[str, Client] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    stats: list[Stats] = field(default_factory=list)

    def accept(self, new: NewRequest) -> None:
        state = state_of(new)
        for token_id in new.prompt_token_ids:
            state = after(state, token_id)
        self.of[new.id] = Client(new, state)

    def take(self, deltas: Iterable[Delta], events: Iterable[tuple[str, Event]]) -> None:
        for request_id, event in events:
            self.of[request_id].events.append(event)
        for delta in deltas:
            client = self.of[delta.request_id]
            client.take(delta)
            if delta.finish is not None:
                client.check_end()

    @property
    def waiting(self) -> list[Client]:
        """Those who are to go on in another engine."""
        return [
            each for name, each in self.of.items() if each.finish is None and name not in self.gone
        ]

    def check_counters(self) -> None:
        """Each token is counted once, and each prompt that was computed, over all engines."""
        outputs = sum(len(each.token_ids) for each in self.of.values())
        computed = sum(
            len(each.new.prompt_token_ids)
            for each in self.of.values()
            if any(
                event.reason in (Reason.FIRST_TOKEN, Reason.PROMPT_COMPUTED)
                for event in each.events
            )
        )
        assert sum(each.num_generation_tokens for each in self.stats) == outputs
        assert sum(each.num_prompt_tokens for each in self.stats) == computed
