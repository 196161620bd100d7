"""The scheduler's expectations of requests: the lengths of outputs, learnt from those that end, and
what follows for new requests: their places in the queue, and whether they can be in time."""

from quire.scheduler.accounts import Counters
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.expectations.foresight import Foresight
from quire.scheduler.expectations.outputs import OutputExpectations
from quire.scheduler.expectations.service import ExpectedService
from quire.scheduler.expectations.shortest_first import ShortestFirst
from quire.scheduler.pacing.step_times import LearnedStepTimes
from quire.scheduler.prefix_waits import PrefixWaits
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request
from quire.scheduler.running import RunningSet
from quire.scheduler.step import Refusal
from quire.scheduler.throughput import ThroughputEstimate


class Expectations:
    """Refuses new requests that cannot be in time, and gives the others their places. `outputs`
    learns from those that have ended."""

    def __init__(
        self,
        config: SchedulerConfig,
        prefix_waits: PrefixWaits,
        waiting: WaitingQueue,
        running: RunningSet,
        times: LearnedStepTimes,
        throughput: ThroughputEstimate,
        counters: Counters,
    ) -> None:
        self.outputs = OutputExpectations()
        self._waiting = waiting
        self._counters = counters
        service = ExpectedService(self.outputs, times)
        self._order = ShortestFirst(config, service, prefix_waits, waiting, running, counters)
        self._foresight = Foresight(
            service, prefix_waits, waiting, running, throughput, counters.recent
        )

    def refusal(self, request: Request) -> Refusal | None:
        """Set the order of a new request. Return a refusal if it cannot meet its deadline."""
        self._order.place(request)
        return self._foresight.refusal(request)

    def note_place(self, request: Request, now: float) -> None:
        """Note who is ahead of a new request that is not in the queue yet, and what is expected of
        it."""
        ahead = self._waiting.ahead(request)
        request.note(now, Reason.QUEUED, ahead.num_requests, ahead.nearest)
        self._order.note_place(request, now)
        target_s = request.new.target_ttft_s
        if target_s is not None:
            late_s = self._foresight.time_needed(request).first_token_s - target_s
            if late_s > 0:
                self._counters.targets.num_ttft_foreseen += 1
                request.note(now, Reason.LATE_EXPECTED, round(1000 * late_s))

    def look_again(self, now: float) -> None:
        """Let waiting requests change places whose prompts are cached by now."""
        self._order.look_again(now)
