"""Replays a record: the real scheduler and cache are given what those of the recorded engine were
given, and every answer is held against the recorded one. No weights and no device are needed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from quire.cache.snapshot.digest_numbers import ExtraHashCall
from quire.engine.recording.bounds import (
    MAX_HELD_TOKENS,
    check_held,
    check_input,
    check_start,
)
from quire.engine.recording.flight_file import FlightFileError, FlightSegment, read_segment
from quire.engine.recording.inputs import (
    SAME,
    Input,
    RequestAborted,
    RequestAdded,
    StepScheduled,
    StepUpdated,
)
from quire.engine.recording.replayed_scheduler import ReplayedScheduler, SegmentStart, restored
from quire.scheduler.snapshot.live_requests import live_requests
from quire.scheduler.step import Stats, Step

NUM_LAST = 8
"""So many of the last steps are told."""
NUM_BETWEEN = 4096
"""After so many inputs progress is told."""


@dataclass(frozen=True, slots=True)
class LastStep:
    """One of the last steps: when it was scheduled, in seconds of the engine's clock, the seconds
    until its result came, None if it never came, what it computed, and the accounts after it was
    scheduled."""

    step: Step
    scheduled_s: float
    seconds: float | None
    stats: Stats


@dataclass(slots=True)
class ReplayResult:
    """The outcome of a replay. `difference` says what first was decided otherwise, at input
    `num_inputs`; empty where all was the same. `starts` are the beginnings of the segments that
    were replayed; `last` is the scheduler as the record ends.
    """

    starts: list[SegmentStart] = field(default_factory=list)
    num_inputs: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    num_arrivals: int = 0
    num_refusals: int = 0
    num_aborts: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    ended_s: float = 0.0
    difference: str = SAME
    last: ReplayedScheduler | None = None
    last_steps: deque[LastStep] = field(default_factory=lambda: deque(maxlen=NUM_LAST))


def replay(
    segments: Sequence[bytes], on_progress: Callable[[int, int, int], None] | None = None
) -> ReplayResult:
    """Return the outcome of a replay of segments, each from its own beginning; it ends at the first
    difference. `on_progress` is told the number of the segment, of all, and of inputs until now.
    Raises FlightFileError for a segment that no recorder can have written.
    """
    found = ReplayResult()
    for number, data in enumerate(segments, 1):
        segment = read_segment(data)
        if segment is None:
            continue
        for _ in replayed_inputs(segment, found):
            if on_progress is not None and found.num_inputs % NUM_BETWEEN == 0:
                on_progress(number, len(segments), found.num_inputs)
        if found.difference:
            break
    return found


def replayed_inputs(segment: FlightSegment, found: ReplayResult) -> Iterator[Input]:
    """Yield each input once it was answered as it is recorded; `found.last` is the scheduler that
    answered. Raises FlightFileError for a segment that no recorder can have written."""
    num_held = check_start(segment.start)
    try:
        replayed = restored(segment.start)
    except Exception as error:  # a snapshot can be wrong in any way
        raise FlightFileError(
            f"a segment of the file begins with what is no snapshot: {type(error).__name__}: "
            f"{error}"
        ) from error
    found.starts.append(segment.start)
    found.last, found.ended_s = replayed, segment.start.now_s
    num_before = found.num_preemptions
    for each in segment.inputs:
        num_held += check_input(each)
        if num_held > MAX_HELD_TOKENS:
            num_held = _num_held(replayed)
            check_held(num_held)
        found.difference = applied(each, replayed)
        found.num_inputs += 1
        if found.difference:
            return
        _count(each, replayed, found)
        found.num_preemptions = num_before + replayed.scheduler.stats.num_preemptions
        yield each


def applied(each: Input, replayed: ReplayedScheduler) -> str:
    """Give an input to a replayed scheduler, and return how its answer differs from the recorded
    one; empty where it does not."""
    digests = replayed.digests
    digests.give(each.answers)
    try:
        difference = each.apply(replayed)
    except ExtraHashCall as error:
        return f"{type(each).__name__}: {error}"
    except Exception as error:  # an input that cannot be applied is another decision
        return f"{type(each).__name__}: {type(error).__name__}: {error}"
    if difference == SAME and digests.num_left:
        return f"{type(each).__name__}: {digests.num_left} blocks were hashed in the record alone"
    return difference


def _num_held(replayed: ReplayedScheduler) -> int:
    """Return how many tokens the live requests have."""
    live = live_requests(replayed.scheduler)
    return sum(each.num_prompt_tokens + each.num_output_tokens for each in live)


def _count(each: Input, replayed: ReplayedScheduler, found: ReplayResult) -> None:
    if isinstance(each, StepScheduled):
        found.num_steps += 1
        found.num_tokens += each.num_tokens
        found.ended_s = each.now
        if replayed.newest is not None:
            stats = replayed.scheduler.stats
            found.last_steps.append(LastStep(replayed.newest, each.now, None, stats))
    elif isinstance(each, StepUpdated):
        found.ended_s = each.now
        for place, last in enumerate(found.last_steps):
            if last.step.number == each.number:
                seconds = each.now - last.scheduled_s
                found.last_steps[place] = LastStep(last.step, last.scheduled_s, seconds, last.stats)
    elif isinstance(each, RequestAdded):
        found.num_arrivals += 1
        found.num_refusals += each.refusal is not None
        found.ended_s = each.now
    elif isinstance(each, RequestAborted):
        found.num_aborts += each.was_here
        found.ended_s = each.now
