"""Times of events between machines, each of which has a clock that counts from its own start.

What clocks have in common is the time of day, kept alike by NTP: the difference of two clocks is
told by it. Processes of one machine share its clock, and nothing is shifted between them.
"""

import time
from collections.abc import Iterable

import msgspec

from quire.engine.messages import EngineOutput
from quire.scheduler.request import Event
from quire.scheduler.step import Delta

SAME_CLOCK_S = 0.01
"""Clocks whose difference seems to be less are one and the same."""


def clock_offset_s() -> float:
    """Return the time of day less the time of this machine's clock."""
    return time.time() - time.monotonic()


def shift_s(from_offset_s: float, to_offset_s: float) -> float:
    """Return what is added to a time of one clock for that of another, by their offsets."""
    shift = from_offset_s - to_offset_s
    return 0.0 if abs(shift) < SAME_CLOCK_S else shift


def shifted_events(events: Iterable[Event], shift: float) -> tuple[Event, ...]:
    """Return the events at the times of another clock."""
    return tuple(event._replace(time_s=event.time_s + shift) for event in events)


def shifted_delta(delta: Delta, shift: float) -> Delta:
    """Return the delta with the times of another clock in its account."""
    if delta.finish is None or not shift:
        return delta
    timeline = shifted_events(delta.finish.timeline, shift)
    return delta._replace(finish=delta.finish._replace(timeline=timeline))


def shifted_output(output: EngineOutput, shift: float) -> EngineOutput:
    """Return the output with the times of another clock."""
    if not shift:
        return output
    return msgspec.structs.replace(
        output,
        deltas=tuple(shifted_delta(each, shift) for each in output.deltas),
        events=tuple((id, *shifted_events([event], shift)) for id, event in output.events),
    )
