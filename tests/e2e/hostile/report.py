"""Writes the table of attacks, for a terminal and in Markdown."""

from collections.abc import Sequence

from tests.e2e.hostile.measure import Outcome

HEADINGS = (
    "Attack",
    "Answered",
    "`/livez` longest",
    "of it its own",
    "Loop held",
    "Memory peak",
    "kept",
    "Mean token gap, calm",
    "beside",
    "longest",
    "Missed",
)


def markdown(outcomes: Sequence[Outcome]) -> str:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, outcomes)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def line(outcome: Outcome) -> str:
    """Return the line that is printed once the attack is over."""
    cells = dict(zip(HEADINGS[2:], _cells(outcome)[2:], strict=True))
    numbers = ", ".join(f"{name} {cell}" for name, cell in cells.items())
    return f"{outcome.attack.name} ({outcome.seconds:.1f} s): {_answered(outcome)}\n    {numbers}"


def _cells(outcome: Outcome) -> tuple[str, ...]:
    failed = f", {outcome.num_livez_failed} failed" if outcome.num_livez_failed else ""
    broken = f", {outcome.num_streams_failed} failed" if outcome.num_streams_failed else ""
    return (
        f"**{outcome.attack.name}**: {outcome.attack.what}",
        _answered(outcome),
        _time(outcome.livez_s) + failed,
        _time(outcome.livez_own_s),
        ("≤ " if outcome.hold.is_bound else "") + _time(outcome.hold.seconds),
        _memory(outcome.peak_mb),
        _memory(outcome.kept_mb),
        _time(outcome.calm_gap_s),
        _time(outcome.gap_s),
        _time(outcome.longest_gap_s) + broken,
        ", ".join(outcome.breaches) or "none",
    )


def _answered(outcome: Outcome) -> str:
    counted = outcome.answers.most_common()
    answers = [f"{label} x {num}" if num > 1 else label for label, num in counted]
    figures = [f"{name} {_time(seconds)}" for name, seconds in outcome.figures.items()]
    return "; ".join([*answers, *figures])


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.{seconds < 0.01:d}f} ms"


def _memory(mb: float) -> str:
    return f"{mb:+.0f} MB"
