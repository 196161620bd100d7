"""A view is what an engine tells as one who looks on may see it: everyone's requests, or one key's.

Of others' requests a view has nothing but that some of them hold a block, and the figures of the
whole model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET, structs

from quire.cache.block_pool import BlockState
from quire.cache.live.block_watch import HolderSet
from quire.scheduler.live.live_frame import (
    LiveFrame,
    LivePace,
    LiveProgress,
    LiveRequest,
    TokenTimes,
)
from quire.scheduler.request import Event
from quire.server.observability.live.live_blocks import LiveBlocks
from quire.server.observability.live.wire import (
    Figures,
    LiveChanges,
    LivePicture,
    PaceFigures,
    Preemption,
    RequestEntered,
    RequestProgress,
    RequestTimes,
    Why,
)
from quire.server.observability.timeline_words import pace_sentence, sentence
from quire.server.observability.timelines import ANOTHER, visible_event

STATES = tuple(state.name.lower() for state in BlockState)


class BlockTotals(NamedTuple):
    """The numbers of blocks of an engine, on the device and on the host, and the tokens of one."""

    num_blocks: int
    num_host_blocks: int
    block_size: int


class Moment(NamedTuple):
    """A moment by two clocks: in Unix time, and in seconds that the engine's clock shares."""

    unix_s: float
    clock_s: float

    def unix_of(self, clock_s: float) -> float:
        """Return the Unix time of another moment of the clock."""
        return round(self.unix_s - (self.clock_s - clock_s), 3)


class PreemptedRequest(NamedTuple):
    """A request that has given up its blocks, as its timeline tells it."""

    request_id: str
    event: Event


class EngineFrame(NamedTuple):
    """A frame of an engine at one moment, with what its steps have told of meanwhile."""

    frame: LiveFrame
    sets: Mapping[int, HolderSet]
    preempted: tuple[PreemptedRequest, ...]
    figures: Figures
    moment: Moment


@dataclass(slots=True)
class _Shown:
    entered: RequestEntered
    progress: RequestProgress | None = None


class LiveView:
    """The picture for those who look on with one key; `tenant` None sees the requests of all, and
    with `names_keys` whose they are."""

    def __init__(
        self, shape: BlockTotals, model: str, tenant: str | None, *, names_keys: bool = False
    ) -> None:
        self._shape = shape
        self._model = model
        self._tenant = tenant
        self._names_keys = names_keys
        self._blocks = LiveBlocks(shape.num_blocks + shape.num_host_blocks)
        self._numbers: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._shown: dict[int, _Shown] = {}
        self._num_entered = 0
        self._pace: LivePace | None = None

    def apply(self, told: EngineFrame) -> LiveChanges:
        """Take in what has changed, and return what of it is seen."""
        frame, moment = told.frame, told.moment
        entered = [
            self._enter(each, moment)
            for each in frame.entered
            if self._tenant in (None, each.tenant)
        ]
        progress = [
            self._note(self._numbers[each.number], each)
            for each in frame.progress
            if each.number in self._numbers
        ]
        preempted = [
            Preemption(
                moment.unix_of(each.event.time_s), self._ids[each.request_id], self._why(each.event)
            )
            for each in told.preempted
            if each.request_id in self._ids
        ]
        runs, sets = self._blocks.apply(frame.runs, told.sets, self._numbers, moment.clock_s)
        self._pace = frame.pace
        figures = self._with_pace(told.figures)
        left = self._leave(frame.left)
        return LiveChanges(moment.unix_s, runs, sets, entered, left, progress, preempted, figures)

    def picture(self, moment: Moment, figures: Figures) -> LivePicture:
        """Return all that is seen."""
        return LivePicture(
            t=moment.unix_s,
            model=self._model,
            states=STATES,
            num_blocks=self._shape.num_blocks,
            num_host_blocks=self._shape.num_host_blocks,
            block_size=self._shape.block_size,
            runs=self._blocks.runs(),
            ages=self._blocks.ages(moment.clock_s),
            sets=self._blocks.sets,
            requests=[each.entered for each in self._shown.values()],
            progress=[each.progress for each in self._shown.values() if each.progress is not None],
            figures=self._with_pace(figures),
        )

    def _with_pace(self, figures: Figures) -> Figures:
        """Return the figures with the pace of steps, where it is told."""
        pace = self._pace
        if pace is None:
            return figures
        other = pace.tightest
        if other and self._tenant is not None and other not in self._ids:
            other = ANOTHER
        told = PaceFigures(
            pace.num_prompt_tokens,
            other,
            pace_sentence(pace.num_prompt_tokens, other, self._target_itl_ms(other)),
            _milliseconds(pace.predicted_s),
            round(pace.error, 4),
        )
        return structs.replace(figures, pace=told)

    def _target_itl_ms(self, id: str) -> float | None:
        """Return the target of a request that is shown, None where it has none or is not."""
        number = self._ids.get(id)
        target_ms = UNSET if number is None else self._shown[number].entered.target_itl_ms
        return None if target_ms is UNSET else target_ms

    def _enter(self, request: LiveRequest, moment: Moment) -> RequestEntered:
        """Show a request from now on, under a number that tells nothing of others."""
        number = self._numbers[request.number] = self._num_entered
        self._num_entered += 1
        self._ids[request.id] = number
        entered = RequestEntered(
            number,
            request.id,
            moment.unix_of(request.arrived_s),
            request.num_prompt_tokens,
            request.max_tokens,
            target_ttft_ms=_milliseconds(request.target_ttft_s) or UNSET,
            target_itl_ms=_milliseconds(request.target_itl_s) or UNSET,
        )
        if self._names_keys:
            entered = structs.replace(entered, key=request.tenant)
        self._shown[number] = _Shown(entered)
        return entered

    def _note(self, number: int, progress: LiveProgress) -> RequestProgress:
        why = None if progress.event is None else self._why(progress.event)
        told = RequestProgress(
            number,
            progress.phase.name.lower(),
            progress.num_computed,
            progress.num_outputs,
            progress.num_preemptions,
            why,
            _times(progress.times),
        )
        shown = self._shown[number]
        before = shown.progress
        whole = told
        if why is None and before is not None:
            whole = structs.replace(told, why=before.why)
        shown.progress = whole
        return told

    def _why(self, event: Event) -> Why:
        if self._tenant is not None:
            event = visible_event(event, self._ids.__contains__)
        text = sentence(event, self._target_itl_ms(event.other))
        return Why(event.reason, event.number, event.other, text)

    def _leave(self, gone: Iterable[int]) -> list[int]:
        left = [self._numbers.pop(each) for each in gone if each in self._numbers]
        for number in left:
            del self._ids[self._shown.pop(number).entered.id]
        self._blocks.forget(left)
        return left


def _times(times: TokenTimes | None) -> RequestTimes | None:
    if times is None:
        return None
    return RequestTimes(_milliseconds(times.ttft_s), _milliseconds(times.itl_s), times.num_late)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
