"""Makes a trace, measured steps and recorded figures of a flight record.

The record is replayed: which blocks of prompts were equal, and how many tokens came, is known from
the scheduler that goes through it. Of prompts that shared blocks the tokens are equal again; blocks
are known by numbers that begin anew with each segment, so that nothing is shared across two.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.cache.snapshot.digest_numbers import number_of
from quire.engine.recording.flight_file import FlightFileError, read_segment
from quire.engine.recording.inputs import (
    Input,
    RequestAdded,
    RequestResumed,
    StepScheduled,
    StepUpdated,
)
from quire.engine.recording.replayed_scheduler import ReplayedScheduler, SegmentStart
from quire.scheduler.pacing.step_work import work_of
from quire.scheduler.snapshot.arrival import ArrivalSnapshot
from quire.scheduler.snapshot.hashed_blocks import hashed_blocks
from quire.scheduler.snapshot.live_requests import live_requests
from quire.scheduler.step import Stats, Step
from quire.workbench.simulation.cost.fit import MeasuredStep
from quire.workbench.simulation.replay import ReplayResult, replayed_inputs
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest
from quire.workbench.simulation.virtual.device import RecordedStep

_UNIQUE = 1 << 30
"""The contents of blocks that nobody shares begin here."""
_MAX_NUMBERS = 1 << 24
"""The contents of a segment's blocks; another segment has others."""


@dataclass(slots=True)
class RecordedAnswer:
    """A request of a record: when it was handed to the engine, when its tokens came."""

    arrival: ArrivalSnapshot
    added_s: float
    parts: tuple[PromptPart, ...] = ()
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))
    has_ended: bool = False


@dataclass(slots=True)
class RecordedRun:
    """A run as a record tells it: how the first segment begins, requests by id, steps with their
    times and the gaps behind them (None where nothing was left to do), and the scheduler's counters
    at the beginning and at the end."""

    start: SegmentStart
    answers: dict[str, RecordedAnswer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    times: list[RecordedStep] = field(default_factory=list)
    gaps_s: list[float | None] = field(default_factory=list)
    first_stats: Stats | None = None
    stats: Stats | None = None

    @property
    def first_s(self) -> float:
        """When the engine got the first request, in seconds of its clock."""
        return min((each.added_s for each in self.answers.values()), default=0.0)

    @property
    def is_overlapped(self) -> bool:
        """Whether a step was scheduled before the result of the one before had come."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return any(after.began_s < before.ended_s for before, after in pairs)

    def measured_steps(self) -> list[MeasuredStep]:
        """Return the work and the seconds of each step: from when it was scheduled, or from the
        end of the one before if that was later."""
        found, ended_s = [], 0.0
        for step, times, gap_s in zip(self.steps, self.times, self.gaps_s, strict=True):
            seconds = times.ended_s - max(times.began_s, ended_s)
            found.append(MeasuredStep(work_of(step), seconds, gap_s))
            ended_s = times.ended_s
        return found

    def requests(self) -> list[TracedRequest]:
        """Return the requests as a trace, in the order in which the engine got them; time begins
        with the first. Those that had not ended with the record have all the tokens they may."""
        return [_traced(each, each.added_s - self.first_s) for each in self.answers.values()]


def read_run(segments: Sequence[bytes]) -> RecordedRun:
    """Return what the segments of a record tell. Raises FlightFileError for a record that cannot
    be read, or that is not replayed as it was recorded."""
    run, found = None, ReplayResult()
    for number, data in enumerate(segments):
        segment = read_segment(data)
        if segment is None:
            continue
        run = run or RecordedRun(segment.start)
        reader = _Reader(run, number)
        for each in replayed_inputs(segment, found):
            assert found.last is not None
            reader.take(each, found.last)
        if found.difference:
            raise FlightFileError(f"it is not replayed as it was recorded: {found.difference}")
    if run is None:
        raise FlightFileError("nothing in it is whole")
    return run


class _Reader:
    """Takes the inputs of one segment into a run."""

    def __init__(self, run: RecordedRun, segment: int) -> None:
        self._run = run
        self._first_content = _MAX_NUMBERS * (1 + segment)
        self._began: dict[int, tuple[Step, float]] = {}
        self._num_outputs: dict[str, int] = {}
        self._num_unique = 0
        self._ended_s: float | None = None

    def take(self, record: Input, replayed: ReplayedScheduler) -> None:
        """Take one input, which the replayed scheduler has just answered."""
        if self._run.first_stats is None:
            self._run.first_stats = replayed.scheduler.stats
        if isinstance(record, RequestAdded | RequestResumed) and record.refusal is None:
            self._run.answers[record.arrival.id] = RecordedAnswer(record.arrival, record.now)
        elif isinstance(record, StepScheduled) and replayed.newest is not None:
            self._schedule(replayed.newest, record.now, replayed)
        elif isinstance(record, StepUpdated):
            self._update(record, replayed)

    def _schedule(self, step: Step, now: float, replayed: ReplayedScheduler) -> None:
        self._began[step.number] = step, now
        if self._run.gaps_s and self._ended_s is not None and self._run.gaps_s[-1] is None:
            self._run.gaps_s[-1] = now - self._ended_s
        for each in step.new_requests:
            answer = self._run.answers.get(each.request.id)
            if answer is not None and not answer.parts:
                digests = hashed_blocks(replayed.scheduler, each.request.id)
                answer.parts = self._parts(digests, answer.arrival)

    def _update(self, record: StepUpdated, replayed: ReplayedScheduler) -> None:
        run, live = self._run, {each.id: each for each in live_requests(replayed.scheduler)}
        run.stats = replayed.scheduler.stats
        step, began_s = self._began.pop(record.number, (None, 0.0))
        self._ended_s = record.now if live else None
        if step is not None:
            run.steps.append(step)
            run.times.append(RecordedStep(began_s, record.now))
            run.gaps_s.append(None)
        for chunk in () if step is None else step.chunks:
            answer = run.answers.get(chunk.request_id)
            if answer is None or answer.has_ended:
                continue
            here = live.get(chunk.request_id)
            before = self._num_outputs.get(chunk.request_id, 0)
            num_new = int(chunk.samples) if here is None else here.num_output_tokens - before
            answer.token_times_s.extend([record.now] * num_new)
        for id in self._num_outputs.keys() - live.keys():
            self._note_end(id)
        for chunk in () if step is None else step.chunks:
            if chunk.request_id not in live:
                self._note_end(chunk.request_id)
        self._num_outputs = {id: each.num_output_tokens for id, each in live.items()}

    def _note_end(self, id: str) -> None:
        if id in self._run.answers:
            self._run.answers[id].has_ended = True

    def _parts(self, digests: Sequence[bytes], arrival: ArrivalSnapshot) -> tuple[PromptPart, ...]:
        """Return the prompt of a request: its hashed blocks, and tokens of its own behind them."""
        size, num_tokens = self._run.start.cache.block_size, arrival.num_prompt_tokens
        source = self._run.answers.get(arrival.fork_of or "")
        if source is not None and not arrival.fork_differs:
            return source.parts
        numbers = [number_of(digest) for digest in digests[: num_tokens // size]]
        parts = [PromptPart(self._first_content + number, size) for number in numbers]
        rest = num_tokens - size * len(parts)
        if rest:
            self._num_unique += 1
            content = _UNIQUE + self._first_content + self._num_unique
            parts.append(PromptPart(content, rest))
        return tuple(parts)


def _traced(answer: RecordedAnswer, sent_s: float) -> TracedRequest:
    arrival = answer.arrival
    num_outputs = len(answer.token_times_s) if answer.has_ended else arrival.max_tokens
    return TracedRequest(
        arrival.id,
        sent_s,
        answer.parts or (PromptPart(_UNIQUE, arrival.num_prompt_tokens),),
        min(max(num_outputs, 1), arrival.max_tokens),
        arrival.max_tokens,
        tenant=str(arrival.tenant) if arrival.tenant else "",
        weight=arrival.weight,
        priority=arrival.priority,
        fork_of=None if arrival.fork_differs else arrival.fork_of,
        time_limit_s=arrival.time_limit_s,
    )
