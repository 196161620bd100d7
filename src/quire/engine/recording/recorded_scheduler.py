"""A scheduler whose inputs are recorded, each with what it answered."""

from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.engine.recording.inputs import (
    Aborted,
    Added,
    CacheReset,
    Failed,
    MadeReady,
    Scheduled,
    Updated,
    checksum_of,
    finishes_of,
)
from quire.engine.recording.recorder import FlightRecorder
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.snapshot.arrival import arrival_of
from quire.scheduler.step import Delta, Refusal, Step, StepResult


class RecordedScheduler(Scheduler):
    """A scheduler that decides as any other, and tells a recorder of each input."""

    def __init__(self, config: SchedulerConfig, cache: KVCache, recorder: FlightRecorder) -> None:
        super().__init__(config, cache)
        self._recorder = recorder
        self._steps: dict[int, Step] = {}

    def add(self, new: NewRequest, now: float, *, is_ready: bool = True) -> Refusal | None:
        recorder = self._recorder
        self._prepare(now)
        refusal = super().add(new, now, is_ready=is_ready)
        reason = None if refusal is None else refusal.reason
        arrival = arrival_of(
            new,
            recorder.tenants.number(new.tenant),
            fork_differs=reason is Reason.FORK_DIFFERS,
        )
        recorder.write(Added(arrival, now, is_ready, reason, recorder.numbers.take()))
        return refusal

    def make_ready(self, request_id: str) -> None:
        super().make_ready(request_id)
        self._recorder.write(MadeReady(request_id, self._recorder.numbers.take()))

    def abort(self, request_id: str, now: float, reason: Reason = Reason.ABORTED) -> Delta | None:
        delta = super().abort(request_id, now, reason)
        answers = self._recorder.numbers.take()
        self._recorder.write(Aborted(request_id, now, reason, delta is not None, answers))
        return delta

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        self._recorder.write(CacheReset(self._recorder.numbers.take()))

    def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe:
        """Return what of a prompt is cached; it is no input, since it changes nothing."""
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
            Scheduled(
                now,
                step.number,
                len(step.chunks),
                step.num_tokens,
                len(step.new_requests),
                checksum_of(step),
                self._recorder.numbers.take(),
            )
        )
        return step

    def update(self, step: Step, result: StepResult, now: float) -> list[Delta]:
        try:
            deltas = super().update(step, result, now)
        except Exception as error:
            self._note_failure(now, step.number, error)
            raise
        self._steps.pop(step.number, None)
        ended: dict[str, int] = {}
        stopped: dict[str, int] = {}
        for delta in deltas:
            if delta.finish is not None:
                if delta.finish.reason is Reason.END_OF_SEQUENCE:
                    ended[delta.request_id] = len(delta.token_ids)
                elif delta.finish.reason is Reason.STOP_TOKEN:
                    stopped[delta.request_id] = len(delta.token_ids)
        self._recorder.write(
            Updated(
                step.number,
                now,
                result.copy_time,
                {id: len(forced) for id, forced in result.forced.items()},
                ended,
                stopped,
                result.not_finite,
                result.grammar_failed,
                finishes_of(deltas),
                self._recorder.numbers.take(),
            )
        )
        return deltas

    def _prepare(self, now: float) -> None:
        is_idle = not self._requests
        self._recorder.prepare(self, self._steps.values(), now, is_idle=is_idle)

    def _note_failure(self, now: float, number: int | None, error: Exception) -> None:
        answers = self._recorder.numbers.take()
        self._recorder.write(Failed(now, number, type(error).__name__, answers))
