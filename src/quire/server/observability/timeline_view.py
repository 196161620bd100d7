"""Shows a timeline as `GET /v1/requests/{id}` answers it.

Times are whole 64ths of a millisecond, which binary fractions hold exactly: a client that adds
the parts up gets the total, in any order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quire.scheduler.reasons import PREEMPTIONS, Reason
from quire.scheduler.request import Event
from quire.scheduler.step import Finish
from quire.server.observability.timeline_reasons import MEANINGS, TimelinePart
from quire.server.observability.timeline_words import sentence
from quire.server.observability.timelines import ChoiceTimeline, Timeline

TICKS_PER_MS = 64
_FIRST_ADMITTED = (Reason.ADMITTED, Reason.FORKED)
_THROWN = (Reason.PREEMPTED_FOR_BLOCKS, Reason.PREEMPTED_FOR_URGENT)


class EventOut(msgspec.Struct, frozen=True):
    """`text` says the event in a sentence, for people. `meaning` says what `number` counts; `other`
    is another request that had a part in it."""

    t_ms: float
    event: str
    text: str
    number: int | UnsetType = UNSET
    meaning: str | UnsetType = UNSET
    other: str | UnsetType = UNSET


class SpanOut(msgspec.Struct, frozen=True):
    """A stretch of a choice's time in one part; times are since the arrival."""

    part: str
    start_ms: float
    end_ms: float


class Counts(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    lost_tokens: int


class ChoiceOut(msgspec.Struct, frozen=True):
    index: int
    finish: str | None
    parts: dict[str, float]
    counts: Counts
    events: tuple[EventOut, ...]
    spans: tuple[SpanOut, ...]


class LatencyOut(msgspec.Struct, frozen=True):
    """The latency targets of a request in milliseconds, null for none, and the largest times of its
    choices as the engine counts them: from the queue to the first token, and the mean between
    tokens; null before these. `late_tokens` after the first missed their target: null while a
    choice runs."""

    target_ttft_ms: float | None
    target_itl_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None
    late_tokens: int | None


class TimelineOut(msgspec.Struct, frozen=True):
    """`index` of a choice with `best_of`: in the order they were drawn. `ignored` are paths of
    fields that were left out of the prompt, and of keywords of schemas that were not enforced.
    `refused_text` says why it was refused. `latency` is told of a request with targets."""

    id: str
    created: int
    model: str
    state: str
    refused: str | None
    total_ms: float
    choices: tuple[ChoiceOut, ...]
    ignored: tuple[str, ...] = ()
    object: str = "request.timeline"
    refused_text: str | UnsetType = UNSET
    latency: LatencyOut | UnsetType = UNSET


class TimelineSummary(msgspec.Struct, frozen=True):
    """`prompt_tokens` and `output_tokens` are those of all choices; `tenant` is told where the
    requests of all keys are listed, `latency` of requests with targets."""

    id: str
    request_id: str
    created: int
    model: str
    state: str
    total_ms: float
    choices: int
    prompt_tokens: int
    output_tokens: int
    object: str = "request"
    tenant: str | UnsetType = UNSET
    latency: LatencyOut | UnsetType = UNSET


class TimelineList(msgspec.Struct, frozen=True):
    data: tuple[TimelineSummary, ...]
    object: str = "list"


def summary(timeline: Timeline, now: float, *, names_tenant: bool = False) -> TimelineSummary:
    """Return the line of a timeline in a list; `now` stands for the end of a request that runs."""
    end_s = now if timeline.ended_s is None else timeline.ended_s
    return TimelineSummary(
        timeline.id,
        timeline.request_id,
        timeline.created_s,
        timeline.model,
        _state(timeline),
        _ticks(end_s - timeline.arrived_s) / TICKS_PER_MS,
        len(timeline.choices),
        sum(choice.num_prompt_tokens for choice in timeline.choices),
        sum(choice.num_outputs for choice in timeline.choices),
        tenant=timeline.tenant if names_tenant else UNSET,
        latency=_latency(timeline, end_s),
    )


def _unknown(_: str) -> None:
    return None


def show(
    timeline: Timeline, now: float, target_itl_ms: Callable[[str], float | None] = _unknown
) -> TimelineOut:
    """Return a timeline as it is answered; `now` stands for the end of a request that runs.
    `target_itl_ms` returns the target of another request by its id, None where it is not known."""
    end_s = now if timeline.ended_s is None else timeline.ended_s
    refused = timeline.refused
    return TimelineOut(
        timeline.id,
        timeline.created_s,
        timeline.model,
        _state(timeline),
        refused,
        _ticks(end_s - timeline.arrived_s) / TICKS_PER_MS,
        tuple(
            _choice(timeline, index, end_s, target_itl_ms) for index in range(len(timeline.choices))
        ),
        timeline.ignored,
        refused_text=UNSET if refused is None else sentence(Event(0.0, refused, 0)),
        latency=_latency(timeline, end_s),
    )


def _latency(timeline: Timeline, now: float) -> LatencyOut | UnsetType:
    """Return the targets and the times of a request that has targets."""
    timed = [(each.times, each.num_outputs) for each in timeline.choices if each.times is not None]
    if not timed:
        return UNSET
    first, _ = timed[0]
    late = [times.num_late for times, _ in timed if times.num_late is not None]
    return LatencyOut(
        _milliseconds(first.target_ttft_s),
        _milliseconds(first.target_itl_s),
        _longest(times.ttft_s for times, _ in timed),
        _longest(times.itl_s(num_outputs, now) for times, num_outputs in timed),
        sum(late) if len(late) == len(timed) else None,
    )


def _longest(times_s: Iterable[float | None]) -> float | None:
    return _milliseconds(max((each for each in times_s if each is not None), default=None))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _state(timeline: Timeline) -> str:
    if timeline.refused is not None:
        return "refused"
    return "live" if timeline.ended_s is None else "ended"


def _choice(
    timeline: Timeline, index: int, end_s: float, target_itl_ms: Callable[[str], float | None]
) -> ChoiceOut:
    choice = timeline.choices[index]
    finish = choice.finish
    events = (choice.live_events or ()) if finish is None else finish.timeline
    spans = _spans(timeline, events, end_s)
    return ChoiceOut(
        index,
        None if finish is None else finish.reason,
        _parts(spans),
        _live_counts(choice, events) if finish is None else _counts(finish),
        tuple(
            _event(event, timeline.arrived_s, target_itl_ms(event.other) if event.other else None)
            for event in events
        ),
        tuple(spans),
    )


def _event(event: Event, arrived_s: float, target_itl_ms: float | None) -> EventOut:
    meaning = MEANINGS[event.reason].number
    return EventOut(
        _ticks(event.time_s - arrived_s) / TICKS_PER_MS,
        event.reason,
        sentence(event, target_itl_ms),
        UNSET if meaning is None else event.number,
        UNSET if meaning is None else meaning,
        event.other or UNSET,
    )


def _spans(timeline: Timeline, events: Sequence[Event], end_s: float) -> list[SpanOut]:
    """Return the stretches of time in their order, but for empty ones; one begins where the last
    ends, so that together they are the whole."""
    spans: list[SpanOut] = []
    arrived_s = timeline.arrived_s
    part, since, end = TimelinePart.RECEIVED, 0, _ticks(end_s - arrived_s)
    for time_s, begins in beginnings(timeline.submitted_s, events):
        now = min(max(_ticks(time_s - arrived_s), since), end)
        _add_span(spans, part, since, now)
        part, since = begins, now
    _add_span(spans, part, since, end)
    return spans


def _add_span(spans: list[SpanOut], part: TimelinePart, since: int, until: int) -> None:
    """Add a span, times in ticks, unless it is empty; one of the same part as the last goes on."""
    if until == since:
        return
    start_ms = since / TICKS_PER_MS
    if spans and spans[-1].part == part:
        start_ms = spans.pop().start_ms
    spans.append(SpanOut(part, start_ms, until / TICKS_PER_MS))


def _parts(spans: Sequence[SpanOut]) -> dict[str, float]:
    """Return the milliseconds of each part."""
    sums = {str(part): 0.0 for part in TimelinePart}
    for span in spans:
        sums[span.part] += span.end_ms - span.start_ms
    return sums


def beginnings(submitted_s: float, events: Sequence[Event]) -> Iterator[tuple[float, TimelinePart]]:
    """Yield when each part begins; a request admitted again after its first token goes on with
    decode."""
    yield submitted_s, TimelinePart.QUEUED
    admitted_into = TimelinePart.PREFILL
    for event in events:
        begins = MEANINGS[event.reason].begins
        if begins is TimelinePart.DECODE:
            admitted_into = TimelinePart.DECODE
        if begins is not None:
            yield event.time_s, admitted_into if begins is TimelinePart.PREFILL else begins


def _counts(finish: Finish) -> Counts:
    return Counts(
        finish.num_prompt_tokens,
        finish.num_cached_tokens,
        finish.num_output_tokens,
        finish.num_preemptions,
        _num_lost(finish.timeline),
    )


def _live_counts(choice: ChoiceTimeline, events: Sequence[Event]) -> Counts:
    cached = [event.number for event in events if event.reason in _FIRST_ADMITTED]
    return Counts(
        choice.num_prompt_tokens,
        cached[0] if cached else 0,
        choice.num_outputs,
        sum(event.reason in PREEMPTIONS for event in events),
        _num_lost(events),
    )


def _num_lost(events: Sequence[Event]) -> int:
    """Return how many computed tokens preemptions threw away, less those found again in the
    cache."""
    lost = thrown = 0
    for event in events:
        if event.reason in _THROWN:
            thrown = event.number
            lost += thrown
        elif event.reason is Reason.RESUMED:
            lost -= min(event.number, thrown)
            thrown = 0
    return lost


def _ticks(seconds: float) -> int:
    return max(round(seconds * 1000 * TICKS_PER_MS), 0)
