"""A scheduler whose inputs and answers are recorded."""

from collections.abc import Mapping

from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.cache.transfers import Transfers
from quire.engine.recording.inputs import (
    CacheReset,
    PrefixUnpinned,
    RequestAborted,
    RequestAdded,
    RequestReady,
    RequestResumed,
    StepFailed,
    StepScheduled,
    StepUpdated,
    TenantsCharged,
    TurnNoted,
    checksum_of,
    finishes_of,
)
from quire.engine.recording.recorded_loads import RecordedLoads, RecordedTransfers
from quire.engine.recording.recorder import FlightRecorder
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, ResumedOutput
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.snapshot.arrival import END_TOKEN, PLAIN_TOKEN, STOP_TOKEN, arrival_of
from quire.scheduler.step import Delta, Refusal, Step, StepResult


class RecordedScheduler(Scheduler):
    """A scheduler that also notifies a recorder of each input."""

    def __init__(self, config: SchedulerConfig, cache: KVCache, recorder: FlightRecorder) -> None:
        super().__init__(config, cache)
        self._recorder = recorder
        self._steps: dict[int, Step] = {}
        self.loads = RecordedLoads(recorder, self._requests, self._cost, self._counters)

    @property
    def transfers(self) -> Transfers:
        """The way for blocks from and to a slower store."""
        return RecordedTransfers(self._recorder, self._cache.transfers)

    def add(self, new: NewRequest, now: float, *, is_ready: bool = True) -> Refusal | None:
        recorder = self._recorder
        self._prepare(now)
        refusal = super().add(new, now, is_ready=is_ready)
        reason = None if refusal is None else refusal.reason
        fork_differs = reason is Reason.FORK_DIFFERS
        arrival = arrival_of(new, recorder.tenants, fork_differs=fork_differs)
        recorder.write(RequestAdded(arrival, now, is_ready, reason, recorder.numbers.take()))
        return refusal

    def resume(
        self, new: NewRequest, resumed: ResumedOutput, now: float, *, is_ready: bool = True
    ) -> Refusal | None:
        recorder, outputs = self._recorder, resumed.output_token_ids
        self._prepare(now)
        refusal = super().resume(new, resumed, now, is_ready=is_ready)
        recorder.write(
            RequestResumed(
                arrival_of(new, recorder.tenants),
                len(outputs),
                _meaning_of_last(new, outputs),
                resumed.num_scored,
                [event[:3] for event in resumed.timeline],
                now,
                is_ready,
                None if refusal is None else refusal.reason,
                recorder.numbers.take(),
            )
        )
        return refusal

    def unpin(self, request_id: str) -> None:
        super().unpin(request_id)
        self._recorder.write(PrefixUnpinned(request_id, self._recorder.numbers.take()))

    def make_ready(self, request_id: str) -> None:
        super().make_ready(request_id)
        self._recorder.write(RequestReady(request_id, self._recorder.numbers.take()))

    def abort(self, request_id: str, now: float, reason: Reason = Reason.ABORTED) -> Delta | None:
        delta = super().abort(request_id, now, reason)
        answers = self._recorder.numbers.take()
        self._recorder.write(RequestAborted(request_id, now, reason, delta is not None, answers))
        return delta

    def note_turn(self, request_id: str, now: float, *, calls_tools: bool) -> None:
        super().note_turn(request_id, now, calls_tools=calls_tools)
        answers = self._recorder.numbers.take()
        self._recorder.write(TurnNoted(request_id, now, calls_tools, answers))

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        self._recorder.write(CacheReset(self._recorder.numbers.take()))

    def charge(self, served: Mapping[str, float]) -> None:
        super().charge(served)
        recorder = self._recorder
        numbered = {recorder.tenants.number(tenant): price for tenant, price in served.items()}
        recorder.write(TenantsCharged(numbered, recorder.numbers.take()))

    def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe:
        """Return the prefix hit of a prompt; it is no input, since it changes nothing."""
        found = super().probe(token_ids, sharing)
        self._recorder.numbers.take()
        return found

    def schedule(self, now: float) -> Step:
        self._prepare(now)
        try:
            step = super().schedule(now)
        except Exception as error:
            self._note_failure(now, None, error)
            raise
        self._steps[step.number] = step
        self._recorder.write(
            StepScheduled(
                now,
                step.number,
                len(step.chunks),
                step.num_tokens,
                len(step.new_requests),
                checksum_of(step, self._cache.usage),
                self._recorder.numbers.take(),
            )
        )
        return step

    def update(self, step: Step, result: StepResult, now: float) -> list[Delta]:
        num_before, is_any_ended = len(self._requests), bool(self._ended)
        try:
            deltas = super().update(step, result, now)
        except Exception as error:
            self._note_failure(now, step.number, error)
            raise
        self._steps.pop(step.number, None)
        is_any_ended = is_any_ended or len(self._requests) < num_before
        finished = [each for each in deltas if each.finish is not None] if is_any_ended else []
        self._recorder.write(
            StepUpdated(
                step.number,
                now,
                result.copy_time,
                {id: len(forced) for id, forced in result.forced.items()},
                {id: len(scores) for id, scores in result.prompt_logprobs.items()},
                _lengths(finished, Reason.END_OF_SEQUENCE),
                _lengths(finished, Reason.STOP_TOKEN),
                result.not_finite,
                result.grammar_failed,
                result.step_failed,
                finishes_of(finished),
                self._recorder.numbers.take(),
            )
        )
        return deltas

    def _prepare(self, now: float) -> None:
        is_idle = not self._requests
        self._recorder.prepare(self, self._steps.values(), now, is_idle=is_idle)

    def _note_failure(self, now: float, number: int | None, error: Exception) -> None:
        answers = self._recorder.numbers.take()
        self._recorder.write(StepFailed(now, number, type(error).__name__, answers))


def _meaning_of_last(new: NewRequest, outputs: tuple[int, ...]) -> int:
    """Return the token that stands in a replay for the kind of an output's last token."""
    stopping = new.stopping
    if outputs and outputs[-1] in stopping.eos_token_ids:
        return END_TOKEN
    is_stop = outputs and outputs[-1] in stopping.stop_token_ids
    return STOP_TOKEN if is_stop and len(outputs) > stopping.min_tokens else PLAIN_TOKEN


def _lengths(finished: list[Delta], reason: Reason) -> dict[str, int]:
    """Return how many tokens those were given at last that ended for this reason."""
    return {
        each.request_id: len(each.token_ids)
        for each in finished
        if each.finish is not None and each.finish.reason is reason
    }
