"""Compares two servers round by round: only figures of one round are divided by each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from quire.workbench.bench.figures import LoadFigures


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One workload on one server in one round."""

    workload: str
    label: str
    round_index: int
    figures: LoadFigures

    @property
    def faults(self) -> tuple[str, ...]:
        """The reasons why the work done was not the work asked for."""
        figures = self.figures
        counted = (
            (figures.num_failed, "failed"),
            (figures.num_other_length, "of another length than asked"),
            (figures.num_without_usage, "without usage"),
        )
        return tuple(f"{n} of {figures.num_requests} {what}" for n, what in counted if n)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The first server's value over the second's, over the rounds in which both have one."""

    median: float
    least: float
    most: float
    num_valid: int
    num_rounds: int


def ratio_of(pairs: Sequence[tuple[float | None, float | None]]) -> Ratio | None:
    """Return the ratio, None where no round has two values above 0."""
    quotients = [first / second for first, second in pairs if first and second]
    if not quotients:
        return None
    least, most = min(quotients), max(quotients)
    return Ratio(median(quotients), least, most, len(quotients), len(pairs))


def compare(
    first: Sequence[WorkloadRun],
    second: Sequence[WorkloadRun],
    measure: Callable[[LoadFigures], float | None],
) -> Ratio | None:
    """Return the ratio of one workload's runs. A round in which either has a fault is left out."""

    def value(run: WorkloadRun) -> float | None:
        return None if run.faults else measure(run.figures)

    theirs = {run.round_index: run for run in second}
    pairs = [(value(run), value(theirs[run.round_index])) for run in first]
    return ratio_of(pairs)
