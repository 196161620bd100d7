"""The report of `quire sim`: what was simulated, and the figures of each policy."""

from collections.abc import Iterator

import msgspec

from quire.workbench.simulation.cost.cost_file import CostFile
from quire.workbench.simulation.figures import Objective, SimFigures
from quire.workbench.simulation.sweep import SweepResult, sweep_rows
from quire.workbench.simulation.table import figures_table, lines_of


class SimRun(msgspec.Struct, frozen=True):
    """One column of the report: the policy that was simulated, or the recorded run."""

    name: str
    figures: SimFigures


class SimReport(msgspec.Struct, frozen=True):
    """Everything that `quire sim` tells. `schedule` says how far the steps of a recorded run came
    out the same, given their own times; empty for other traces."""

    quire: str
    trace: str
    cost: str
    model: str
    machine: str
    seed: int
    objective: Objective
    runs: tuple[SimRun, ...] = ()
    swept: tuple[SweepResult, ...] = ()
    schedule: str = ""
    notes: tuple[str, ...] = ()


def lines_of_report(report: SimReport) -> Iterator[str]:
    """Yield the lines of a report for people."""
    yield f"simulated by Quire {report.quire}: {report.trace}, seed {report.seed}"
    yield f"cost: {report.cost}, {report.model}, {report.machine}"
    yield from report.notes
    if report.schedule:
        yield f"schedule: {report.schedule}"
    if report.runs:
        yield ""
        yield from figures_table([(each.name, each.figures) for each in report.runs])
    if report.swept:
        yield ""
        yield from lines_of(list(sweep_rows(report.swept)))
        num = sum(each.speed_up > 0 for each in report.swept)
        yield f"{num} of {len(report.swept)} settings keep the objective"


def fit_lines(cost: CostFile) -> Iterator[str]:
    """Yield what a calibration found, for people."""
    fit, step, gap = cost.fit, cost.step, cost.gap
    assert fit is not None
    yield f"{cost.model} on {cost.machine}: {fit.num_steps} steps"
    yield (
        f"errors of a step's time: {fit.median:.1%} in the median, {fit.p90:.1%} of 90 %, "
        f"{fit.p99:.1%} of 99 %"
    )
    yield (
        f"a step: {1e3 * step.base_s:.3f} ms, {1e6 * step.seq_s:.1f} us a sequence, "
        f"{1e6 * step.prefill_s:.2f} us a token of prefill, {1e9 * step.context_token_s:.1f} ns a "
        f"token of context, {1e9 * step.pair_s:.1f} ns a pair of prefill"
    )
    slopes = zip((*step.token_knots, None), step.token_s, strict=True)
    told = (f"{1e6 * s:.1f} {f'to {knot}' if knot else 'beyond'}" for knot, s in slopes)
    yield f"a token, in us: {', '.join(told)}"
    yield f"between steps: {1e3 * gap.base_s:.3f} ms, {1e6 * gap.seq_s:.1f} us a sequence"
    yield f"the server: {1e3 * cost.server.request_latency_s:.2f} ms a request"
