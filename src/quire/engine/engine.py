"""The engine's step: schedule, run, update.

With overlap (async scheduling), a step is scheduled and launched while the device still computes
the one before it, whose result is returned one call later.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from quire.cache.kv_events import KVEvent
from quire.cache.sharing import SharingTerms
from quire.engine.launched_step import LaunchedStep
from quire.engine.live_timer import LiveTimer
from quire.engine.persistence.disk_cache import DiskCache
from quire.engine.runner import Runner
from quire.engine.running_record import RunningRequests
from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, ResumedOutput
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Refusal, Stats, StepResult
from quire.scheduler.usage.ledger import UsageUpdate
from quire.storage.disk.counts import DiskStats
from quire.storage.network.counts import TransferStats


class StepOutput(NamedTuple):
    """The output of one completed step: its number, how many tokens it computed, how many seconds
    it took, and the outputs of its requests. `step` is 0 if no step was completed."""

    step: int
    num_tokens: int
    step_s: float
    deltas: list[Delta]


class InFlightStep(NamedTuple):
    """A step that the device computes, and when it was begun, in seconds of the engine's clock."""

    launched: LaunchedStep
    began_s: float


class EngineExtras(NamedTuple):
    """The optional parts of an engine: the prefix cache on disk, and a function that closes
    everything opened with the engine."""

    disk: DiskCache | None = None
    on_close: Sequence[Callable[[], None]] = ()


WAIT_S = 0.01
"""The interval in which an engine receives messages while all requests wait for grammars or a disk.
"""
NOTHING = EngineExtras()
NO_STEP = StepOutput(0, 0, 0.0, [])


class Engine:
    """Owns a scheduler and a runner, and takes their steps.

    `clock` returns seconds that never go back. `is_overlapped` schedules a step while the device
    computes the one before; it helps on devices that compute while the host goes on. A request with
    a grammar runs once that is compiled, by the runner's `grammars`. `running`, if given, records
    the active requests.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        beside: EngineExtras = NOTHING,
        *,
        is_overlapped: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._disk, self._on_close = beside
        self._grammars = runner.grammars
        self._is_overlapped = is_overlapped
        self._in_flight: InFlightStep | None = None
        self._ended_s = clock()
        self._live: LiveTimer | None = None
        self.running: RunningRequests | None = None

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do: a request to schedule or a result to collect."""
        if self._scheduler.has_work or self._in_flight is not None:
            return True
        return self._disk is not None and self._disk.has_work

    @property
    def is_writing(self) -> bool:
        """Whether blocks are being written to disk, or may be sent, beside the steps."""
        return self._disk is not None and self._disk.is_busy

    @property
    def stats(self) -> Stats:
        """The scheduler's counters and gauges as they are now."""
        return self._scheduler.stats

    @property
    def disk_stats(self) -> DiskStats | None:
        """The statistics of the prefix cache on disk, None without one."""
        return None if self._disk is None else self._disk.stats

    @property
    def transfer_stats(self) -> TransferStats | None:
        """The accounts of blocks that engines send each other, None where they do not."""
        return None if self._disk is None else self._disk.transfer_stats

    def submit(self, new: NewRequest, resumed: ResumedOutput | None = None) -> Refusal | None:
        """Add a request to the waiting queue, `resumed` where an engine that has ended had accepted
        it; return the refusal if it was not accepted."""
        refusal = self._add(new, resumed)
        if refusal is None and self._disk is not None:
            self._disk.begin(new.id)
        return refusal

    def _add(self, new: NewRequest, resumed: ResumedOutput | None) -> Refusal | None:
        """Add a request, which waits for its grammar, if it has one."""
        grammars, grammar = self._grammars, new.sampling.grammar
        if grammar and grammars is None:
            return Refusal(new.id, Reason.GRAMMAR_FAILED, "this engine has no grammars")
        if self.running is not None:
            self.running.enter(new.id)
        now, is_ready = self._clock(), not grammar
        refusal = (
            self._scheduler.add(new, now, is_ready=is_ready)
            if resumed is None
            else self._scheduler.resume(new, resumed, now, is_ready=is_ready)
        )
        if refusal is None and grammars is not None and grammar and grammars.hold(new.id, grammar):
            self._scheduler.make_ready(new.id)
            is_ready = True
        if self.running is not None and (is_ready or refusal is not None):
            self.running.leave(new.id)
        return refusal

    def abort(self, request_id: str) -> Delta | None:
        """End a request; return its last delta, or None if the engine does not have it."""
        return self._released(self._scheduler.abort(request_id, self._clock()))

    def reset_prefix_cache(self) -> None:
        """Make everything that is cached now unfindable for later requests."""
        self._scheduler.usage.advance(self._clock())
        self._scheduler.reset_prefix_cache()
        if self._disk is not None:
            self._disk.reset()

    def unpin(self, request_id: str) -> None:
        """Let the blocks that a request has pinned be evicted."""
        self._scheduler.usage.advance(self._clock())
        self._scheduler.unpin(request_id)

    def note_turn(self, request_id: str, *, calls_tools: bool) -> None:
        """Note that the answer of a request that has ended is over, and whether it calls tools."""
        self._scheduler.note_turn(request_id, self._clock(), calls_tools=calls_tools)

    def charge(self, served: Mapping[str, float]) -> None:
        """Charge tenants for their service in other engines."""
        self._scheduler.charge(served)

    def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe:
        """Return the prefix hit of a prompt, without touching any block."""
        return self._scheduler.probe(token_ids, sharing)

    def watch(self, interval_s: float | None) -> None:
        """Start to produce `LiveFrame`s, the first complete, at least `interval_s` seconds apart;
        None stops them."""
        in_flight = self._scheduler.in_flight
        self._live = None if interval_s is None else LiveTimer(in_flight, interval_s, self._clock)

    @property
    def live_wait_s(self) -> float | None:
        """The seconds until the next frame of an idle engine; None if no frame is due."""
        return None if self._live is None else self._live.wait_s

    def take_live_frame(self, *, has_worked: bool) -> LiveFrame | None:
        """Return the changes since the last frame, if a frame is due. `has_worked` is True if the
        engine did anything since the last call."""
        return None if self._live is None else self._live.take(has_worked=has_worked)

    @property
    def holds_blocks(self) -> bool:
        """Whether some tenant is charged for blocks, at work or idle."""
        return self._scheduler.usage.is_running

    def take_usage(self) -> UsageUpdate:
        """Return the usage since the last call."""
        return self._scheduler.usage.take(self._clock())

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """Return the events of the KV cache since this was last called."""
        return self._scheduler.take_kv_events()

    def take_events(self) -> tuple[tuple[str, Event], ...]:
        """Return the new entries of request timelines, with request ids, since the last call."""
        return self._scheduler.take_events()

    def step(self) -> StepOutput:
        """Take one step: schedule, run, update. With overlap the outputs are those of the step
        before, and of this one too if it computes nothing. Where all requests wait for
        grammars or the disk, it waits for one of them, WAIT_S at most."""
        if self._disk is not None:
            self._disk.before_step(is_idle=not self._scheduler.has_work)
            if not self._scheduler.has_work and self._in_flight is None:
                self._disk.wait(WAIT_S)
                return NO_STEP
        failed = self._take_compiled()
        output = self._step()
        if self._grammars is not None or self._disk is not None:
            for delta in output.deltas:
                self._released(delta)
        return output._replace(deltas=failed + output.deltas) if failed else output

    def map_pages(self) -> bool:
        """Map a page of memory for the KV blocks that come next, while the engine is idle, if they
        lie in memory that is mapped when it is written; return whether more may be mapped."""
        return self._runner.map_pages(is_idle=True)

    def _step(self) -> StepOutput:
        began = self._clock()
        step = self._scheduler.schedule(began)
        if self.running is not None:
            self.running.note_step(step)
        new = InFlightStep(self._runner.launch(step), began)
        if not new.launched.step.chunks and self._in_flight is None:
            self._wait()
        previous, self._in_flight = self._in_flight, None
        result = None if previous is None else self._runner.collect(previous.launched)
        self._runner.sample(new.launched)
        output = NO_STEP
        if previous is not None and result is not None:
            output = self._end(previous, result)
        if self._is_overlapped and new.launched.step.chunks:
            self._in_flight = new
            return output
        last = self._end(new, self._runner.collect(new.launched))
        if last.num_tokens == len(step.chunks):
            self._runner.map_pages(is_idle=False)  # no first token waits for it
        return last if previous is None else output._replace(deltas=output.deltas + last.deltas)

    def _wait(self) -> None:
        """Wait at most WAIT_S for the grammars or loads of waiting requests."""
        if self._disk is not None and self._disk.wait(WAIT_S):
            return
        if self._grammars is not None:
            self._grammars.wait(WAIT_S)

    def _end(self, ended: InFlightStep, result: StepResult) -> StepOutput:
        step, now = ended.launched.step, self._clock()
        seconds = now - max(ended.began_s, self._ended_s)
        self._ended_s = now
        return StepOutput(
            step.number, step.num_tokens, seconds, self._scheduler.update(step, result, now)
        )

    def _take_compiled(self) -> list[Delta]:
        """Let the requests run whose grammars are compiled; end those whose grammars are not."""
        ended = []
        for request_id, has_failed in (
            () if self._grammars is None else self._grammars.take_compiled()
        ):
            if self.running is not None:
                self.running.leave(request_id)
            if not has_failed:
                self._scheduler.make_ready(request_id)
                continue
            delta = self._scheduler.abort(request_id, self._clock(), Reason.GRAMMAR_FAILED)
            if delta is not None:
                ended.append(delta)
            self._released(delta)
        return ended

    def _released(self, delta: Delta | None) -> Delta | None:
        """Free the grammar and the loads of an ended request."""
        if self.running is not None and delta is not None:
            self.running.leave(delta.request_id)
        if delta is None or delta.finish is None:
            return delta
        if self._grammars is not None:
            self._grammars.release(delta.request_id)
        if self._disk is not None:
            is_finite = delta.finish.reason is not Reason.NOT_FINITE
            self._disk.end(delta.request_id, is_finite=is_finite)
        return delta

    def close(self) -> None:
        """Close everything opened with the engine; no step may follow."""
        if self._grammars is not None:
            self._grammars.close()
        if self._disk is not None:
            self._disk.close()
        for close in self._on_close:
            close()
