"""The record of a finished request for those who trace it, and the parts of its time."""

from collections.abc import Iterator
from typing import NamedTuple

from quire.scheduler.step import Finish
from quire.server.http.trace_context import TraceContext
from quire.server.observability.timeline_reasons import MEANINGS, TimelinePart
from quire.server.observability.timeline_view import beginnings


class RequestRecord(NamedTuple):
    """The account of a finished request, without its text. Seconds are those of the server's
    clock; `finishes` are the engine's accounts of the choices that it ended. Cached tokens are
    those of the usage."""

    trace: TraceContext
    operation: str
    id: str
    model: str
    num_prompt_tokens: int
    arrived_s: float
    submitted_s: float
    ended_s: float
    finishes: tuple[Finish, ...]
    num_cached_tokens: int


class TimelineSpan(NamedTuple):
    """A part of a choice's time, in seconds of the server's clock, with what happened in it: time,
    name, and the number that goes with it under its meaning."""

    name: TimelinePart
    start_s: float
    end_s: float
    events: tuple[tuple[float, str, dict[str, int]], ...]


def parts_of(record: RequestRecord, finish: Finish) -> Iterator[TimelineSpan]:
    """Yield the parts of a choice; one begins where the last ends, and those of no length that
    nothing happened in are left out."""
    marks = [(record.arrived_s, TimelinePart.RECEIVED)]
    marks += beginnings(record.submitted_s, finish.timeline)
    ends = [*(time_s for time_s, _ in marks[1:]), record.ended_s]
    events = [
        (event.time_s, str(event.reason), {meaning: event.number} if meaning else {})
        for event in finish.timeline
        for meaning in (MEANINGS[event.reason].number,)
    ]
    for index, ((start_s, name), end_s) in enumerate(zip(marks, ends, strict=True)):
        is_last = index == len(marks) - 1
        within = tuple(
            each for each in events if start_s <= each[0] and (is_last or each[0] < end_s)
        )
        if end_s > start_s or within:
            yield TimelineSpan(name, start_s, max(start_s, end_s), within)
