"""A snapshot of all that a scheduler has learnt of how long things take."""

from collections import deque
from typing import NamedTuple

from quire.scheduler.appointments import MAX_GIVEN, Appointments
from quire.scheduler.cost import CostModel
from quire.scheduler.pacing.step_times import LearnedStepTimes
from quire.scheduler.throughput import ThroughputEstimate


class ThroughputSnapshot(NamedTuple):
    """The fields of `ThroughputEstimate`; `began` has the number, the time and whether someone was
    left waiting, of each step under way."""

    began: list[tuple[int, float, bool]]
    ended_s: float
    num_tokens: float
    seconds: float
    was_busy: bool
    busy_steps_s: float
    busy_s: float


class SumsSnapshot(NamedTuple):
    """Weighted sums over tokens, or blocks, and seconds."""

    weight: float
    tokens: float
    seconds: float
    squares: float
    products: float


class AppointmentsSnapshot(NamedTuple):
    """The fields of `Appointments`."""

    last_s: float
    place_s: float
    given: list[float]
    num_ended: float
    num_prompt: float


class StepTimesSnapshot(NamedTuple):
    """The fields of `LearnedStepTimes`."""

    products: list[list[float]]
    moments: list[float]
    coefficients: list[float]
    num_since: int
    error: float
    most_prompt: float


class EstimatesSnapshot(NamedTuple):
    """The throughput, the costs of steps and of copies, appointments, and the times of steps."""

    throughput: ThroughputSnapshot
    steps: SumsSnapshot
    copies: SumsSnapshot
    state_copies: SumsSnapshot
    appointments: AppointmentsSnapshot
    times: StepTimesSnapshot


def snapshot_estimates(
    throughput: ThroughputEstimate,
    cost: CostModel,
    appointments: Appointments,
    times: LearnedStepTimes,
) -> EstimatesSnapshot:
    """Return a snapshot of all of them."""
    steps, copies, state_copies = (
        SumsSnapshot(each.weight, each.tokens, each.seconds, each.squares, each.products)
        for each in (cost._steps, cost._copies, cost._state_copies)
    )
    return EstimatesSnapshot(
        ThroughputSnapshot(
            [(number, began_s, left) for number, (began_s, left) in throughput._began.items()],
            throughput._ended_s,
            throughput._num_tokens,
            throughput._seconds,
            throughput._was_busy,
            throughput._busy_steps_s,
            throughput._busy_s,
        ),
        steps,
        copies,
        state_copies,
        AppointmentsSnapshot(
            appointments._last_s,
            appointments._place_s,
            list(appointments._given),
            appointments._num_ended,
            appointments._num_prompt,
        ),
        StepTimesSnapshot(
            [list(each) for each in times._products],
            list(times._moments),
            list(times._coefficients),
            times._num_since,
            times._error,
            times._most_prompt,
        ),
    )


def restore_estimates(
    throughput: ThroughputEstimate,
    cost: CostModel,
    appointments: Appointments,
    times: LearnedStepTimes,
    snapshot: EstimatesSnapshot,
) -> None:
    """Restore new objects from the snapshot."""
    known = snapshot.throughput
    throughput._began = {number: (began_s, left) for number, began_s, left in known.began}
    throughput._ended_s = known.ended_s
    throughput._num_tokens, throughput._seconds = known.num_tokens, known.seconds
    throughput._was_busy = known.was_busy
    throughput._busy_steps_s, throughput._busy_s = known.busy_steps_s, known.busy_s
    for sums, each in (
        (cost._steps, snapshot.steps),
        (cost._copies, snapshot.copies),
        (cost._state_copies, snapshot.state_copies),
    ):
        sums.weight, sums.tokens, sums.seconds = each.weight, each.tokens, each.seconds
        sums.squares, sums.products = each.squares, each.products
    given = snapshot.appointments
    appointments._last_s, appointments._place_s = given.last_s, given.place_s
    appointments._given = deque(given.given, maxlen=MAX_GIVEN)
    appointments._num_ended, appointments._num_prompt = given.num_ended, given.num_prompt
    learned = snapshot.times
    times._products, times._moments = [list(each) for each in learned.products], learned.moments
    times._coefficients, times._num_since = tuple(learned.coefficients), learned.num_since
    times._error, times._most_prompt = learned.error, learned.most_prompt
