"""The report of a replay: when and how long, whether all was decided the same, and what led to the
end of the record.
"""

import time
from collections.abc import Iterator

import msgspec

from quire.engine.recording.flight_file import FlightHead
from quire.scheduler.reasons import Reason
from quire.scheduler.snapshot.live_requests import live_requests
from quire.workbench.simulation.replay import LastStep, ReplayResult

MAX_TOLD = 20
"""So many requests are told in words, and of so many steps; all are in JSON."""


class ReportedRequest(msgspec.Struct, frozen=True):
    """A request as the record ends. `age_s` is the time since it arrived; `last` is the last
    decision of its timeline since the segment began."""

    id: str
    is_running: bool
    age_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed: int
    num_blocks: int
    num_preemptions: int
    last: Reason


class ReportedStep(msgspec.Struct, frozen=True):
    """One of the last steps. `seconds` is None where its result never came."""

    number: int
    ago_s: float
    seconds: float | None
    num_chunks: int
    num_tokens: int
    num_prefill_tokens: int
    num_admitted: int
    num_waiting: int
    num_blocks_free: int
    request_ids: tuple[str, ...]


class ReplayReport(msgspec.Struct, frozen=True):
    """Everything that `quire replay` tells."""

    quire: str
    model: str
    reason: str
    written: str
    began: str
    seconds: float
    num_segments: int
    num_inputs: int
    num_steps: int
    num_tokens: int
    num_arrivals: int
    num_refusals: int
    num_aborts: int
    num_preemptions: int
    is_same: bool
    difference: str
    num_blocks: int
    num_blocks_free: int
    num_blocks_cached: int
    num_blocks_active: int
    steps: tuple[ReportedStep, ...]
    requests: tuple[ReportedRequest, ...]


def report_of(head: FlightHead, replayed: ReplayResult) -> ReplayReport:
    """Return the report of a replay that had at least one segment."""
    first, last = replayed.starts[0], replayed.last
    assert last is not None
    stats = last.scheduler.stats
    return ReplayReport(
        quire=head.quire,
        model=head.model,
        reason=head.reason,
        written=_time(head.written_s),
        began=_time(first.wall_s),
        seconds=replayed.ended_s - first.now_s,
        num_segments=len(replayed.starts),
        num_inputs=replayed.num_inputs,
        num_steps=replayed.num_steps,
        num_tokens=replayed.num_tokens,
        num_arrivals=replayed.num_arrivals,
        num_refusals=replayed.num_refusals,
        num_aborts=replayed.num_aborts,
        num_preemptions=replayed.num_preemptions,
        is_same=not replayed.difference,
        difference=replayed.difference,
        num_blocks=last.cache.num_usable_blocks,
        num_blocks_free=stats.num_blocks_free,
        num_blocks_cached=stats.num_blocks_cached,
        num_blocks_active=stats.num_blocks_active,
        steps=tuple(_step(each, replayed.ended_s) for each in replayed.last_steps),
        requests=tuple(_requests(replayed)),
    )


def lines_of(report: ReplayReport) -> Iterator[str]:
    """Yield the lines of a report for people."""
    yield f"recorded by Quire {report.quire}, model {report.model}"
    yield f"written {report.written}: {report.reason}"
    yield (
        f"{report.seconds:.1f} s from {report.began} on, in {report.num_segments} segments: "
        f"{report.num_steps} steps, {report.num_tokens} tokens, {report.num_arrivals} arrivals, "
        f"{report.num_refusals} refused, {report.num_aborts} aborted, "
        f"{report.num_preemptions} preemptions"
    )
    if report.is_same:
        yield f"replayed: the same decision at each of {report.num_steps} steps"
    else:
        yield f"replayed: ANOTHER decision at input {report.num_inputs}: {report.difference}"
    yield (
        f"KV blocks at the end: {report.num_blocks_free} free, {report.num_blocks_cached} cached, "
        f"{report.num_blocks_active} active of {report.num_blocks}"
    )
    yield f"the last {len(report.steps)} steps:"
    yield from (_step_line(each) for each in report.steps)
    running = [each for each in report.requests if each.is_running]
    waiting = [each for each in report.requests if not each.is_running]
    for state, requests in (("running", running), ("waiting", waiting)):
        yield f"{len(requests)} {state}:"
        yield from (_request_line(each) for each in requests[:MAX_TOLD])
        if len(requests) > MAX_TOLD:
            yield f"  and {len(requests) - MAX_TOLD} more (--json has them all)"


def _step_line(step: ReportedStep) -> str:
    took = "its result NEVER CAME" if step.seconds is None else f"{1e3 * step.seconds:.1f} ms"
    return (
        f"  step {step.number}, {step.ago_s:.3f} s before the end, {took}: {step.num_chunks} "
        f"requests, {step.num_tokens} tokens ({step.num_prefill_tokens} of them in chunks of more "
        f"than one), {step.num_admitted} admitted, {step.num_waiting} waited, "
        f"{step.num_blocks_free} blocks free"
    )


def _request_line(request: ReportedRequest) -> str:
    preempted = f", preempted {request.num_preemptions} times" if request.num_preemptions else ""
    return (
        f"  {request.id}: {request.age_s:.1f} s old, prompt {request.num_prompt_tokens}, output "
        f"{request.num_output_tokens}, computed {request.num_computed}, {request.num_blocks} "
        f"blocks, {request.last}{preempted}"
    )


def _step(last: LastStep, ended_s: float) -> ReportedStep:
    step, stats = last.step, last.stats
    return ReportedStep(
        number=step.number,
        ago_s=ended_s - last.scheduled_s,
        seconds=last.seconds,
        num_chunks=len(step.chunks),
        num_tokens=step.num_tokens,
        num_prefill_tokens=sum(each.num_tokens for each in step.chunks if each.num_tokens > 1),
        num_admitted=len(step.new_requests),
        num_waiting=stats.num_waiting,
        num_blocks_free=stats.num_blocks_free,
        request_ids=tuple(each.request_id for each in step.chunks),
    )


def _requests(replayed: ReplayResult) -> Iterator[ReportedRequest]:
    if replayed.last is None:
        return
    for each in live_requests(replayed.last.scheduler):
        yield ReportedRequest(
            id=each.id,
            is_running=each.is_running,
            age_s=replayed.ended_s - each.arrived_s,
            num_prompt_tokens=each.num_prompt_tokens,
            num_output_tokens=each.num_output_tokens,
            num_computed=each.num_computed,
            num_blocks=each.num_blocks,
            num_preemptions=each.num_preemptions,
            last=each.last,
        )


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
