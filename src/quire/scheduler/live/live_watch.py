"""Reports the state of a scheduler and its cache in frames; each contains the changes since the
last.

A frame is taken between two steps. It reads, and keeps what it has told: no decision depends on
whether anyone looks.
"""

from typing import TypeAlias

from quire.cache.live.block_watch import BlockWatch, Holder
from quire.scheduler.live.in_flight import InFlightRequests
from quire.scheduler.live.live_frame import (
    LiveFrame,
    LiveProgress,
    LiveRequest,
    RequestPhase,
    TokenTimes,
)
from quire.scheduler.request import Event, Request

MAX_WAITING = 256
"""The maximum number of waiting requests in a frame; further ones are only counted."""
_Told: TypeAlias = tuple[int, int, Event, RequestPhase]


class LiveWatch:
    """Follows one scheduler from its first frame on, which is whole."""

    def __init__(self, in_flight: InFlightRequests) -> None:
        self._in_flight = in_flight
        self._blocks = BlockWatch(in_flight.cache)
        self._numbers: dict[str, int] = {}
        self._told: dict[int, _Told] = {}
        self._num_numbered = 0
        self._is_begun = False
        self._has_targets = False

    def frame(self) -> LiveFrame:
        """Return the changes since the last call."""
        running, waiting = self._in_flight.running(), self._in_flight.waiting(MAX_WAITING)
        entered: list[LiveRequest] = []
        progress: list[LiveProgress] = []
        numbers: dict[str, int] = {}
        holders: list[Holder] = []
        self._has_targets = False
        for request in running:
            number = numbers[request.new.id] = self._number(request, entered)
            holders.append(Holder(number, request.admitted_step, request.table))
            is_decoding = request.first_token_s is not None
            phase = RequestPhase.DECODE if is_decoding else RequestPhase.PREFILL
            self._tell(number, phase, request, progress)
        for request in waiting:
            number = numbers[request.new.id] = self._number(request, entered)
            self._tell(number, _phase_of_waiting(request), request, progress)
        left = [number for id, number in self._numbers.items() if id not in numbers]
        for number in left:
            del self._told[number]
        self._numbers = numbers
        runs, sets = self._blocks.changes(holders)
        is_whole, self._is_begun = not self._is_begun, True
        num_unlisted = self._in_flight.num_waiting - len(waiting)
        pace = self._in_flight.pace if self._has_targets else None
        return LiveFrame(is_whole, runs, sets, entered, left, progress, num_unlisted, pace)

    def _number(self, request: Request, entered: list[LiveRequest]) -> int:
        """Return the number of a request, which enters the view if it is new."""
        number = self._numbers.get(request.new.id)
        if number is None:
            number = self._num_numbered
            self._num_numbered += 1
            new = request.new
            entered.append(
                LiveRequest(
                    number,
                    new.id,
                    new.tenant,
                    len(new.prompt_token_ids),
                    new.stopping.max_tokens,
                    request.arrived_s,
                    new.target_ttft_s,
                    new.target_itl_s,
                )
            )
        return number

    def _tell(
        self, number: int, phase: RequestPhase, request: Request, progress: list[LiveProgress]
    ) -> None:
        """Add the progress of a request, unless it is unchanged. Each has an event: that it was
        queued."""
        has_targets = _has_targets(request)
        self._has_targets |= has_targets
        computed, event = request.num_computed, request.timeline[-1]
        outputs = len(request.token_ids) - len(request.new.prompt_token_ids)
        told, now = self._told.get(number), (computed, outputs, event, phase)
        if told == now:
            return
        self._told[number] = now
        is_new_event = told is None or told[2] is not event
        num_preemptions = request.num_earlier_preemptions + request.num_preemptions
        progress.append(
            LiveProgress(
                number,
                phase,
                computed,
                outputs,
                num_preemptions,
                event if is_new_event else None,
                _times_of(request) if has_targets else None,
            )
        )


def _has_targets(request: Request) -> bool:
    return request.new.target_ttft_s is not None or request.new.target_itl_s is not None


def _times_of(request: Request) -> TokenTimes:
    first_s = request.first_token_s
    ttft_s = None if first_s is None else first_s - request.arrived_s
    return TokenTimes(ttft_s, request.last_gap_s, request.num_late_tokens)


def _phase_of_waiting(request: Request) -> RequestPhase:
    if request.table.swap is not None:
        return RequestPhase.SWAPPED
    return RequestPhase.QUEUED if request.admitted_s is None else RequestPhase.PREEMPTED
