"""Tables of figures for people: a row for each figure, a column for each run."""

from collections.abc import Callable, Iterator, Sequence

from quire.workbench.simulation.figures import SimFigures, Spread


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _spread(spread: Spread) -> str:
    return " / ".join(map(_milliseconds, (spread.p50_ms, spread.p90_ms, spread.p99_ms)))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


ROWS: tuple[tuple[str, Callable[[SimFigures], str]], ...] = (
    ("requests", lambda run: f"{run.num_requests:,}"),
    ("refused", lambda run: f"{run.num_refused:,}"),
    ("seconds", lambda run: f"{run.seconds:,.1f}"),
    ("TTFT ms, p50 / p90 / p99", lambda run: _spread(run.first_token)),
    ("ITL ms, p50 / p90 / p99", lambda run: _spread(run.inter_token)),
    ("end to end ms, p50 / p90 / p99", lambda run: _spread(run.end_to_end)),
    ("output tok/s", lambda run: f"{run.output_tok_s:,.1f}"),
    ("within the objective", lambda run: _share(run.good_share)),
    ("goodput, requests/s", lambda run: _rate(run.goodput_req_s)),
    ("preemptions", lambda run: f"{run.num_preemptions:,}"),
    ("prefix hits", lambda run: _share(run.hit_rate)),
    ("steps", lambda run: f"{run.num_steps:,}"),
    ("output tokens a step", lambda run: f"{run.mean_running:.1f}"),
)
SENDING: tuple[tuple[str, Callable[[SimFigures], str]], ...] = (
    ("keys and values sent, GB", lambda run: f"{run.sent_gb:,.1f}"),
    ("sending ms, p50 / p90 / p99", lambda run: _spread(run.sending)),
    ("prompts computed again", lambda run: f"{run.num_declined:,}"),
)
"""Rows of runs in which engines send each other blocks."""
STATES: tuple[tuple[str, Callable[[SimFigures], str]], ...] = (
    ("keys and values found", lambda run: _share(run.kv_hit_rate)),
    ("misses for want of a state", lambda run: f"{run.num_without_state:,}"),
)
"""Rows of runs of models with recurrent layers."""
SESSIONS: tuple[tuple[str, Callable[[SimFigures], str]], ...] = (
    ("TTFT ms of first turns, p50 / p90 / p99", lambda run: _spread(run.first_turns)),
    ("TTFT ms of later turns, p50 / p90 / p99", lambda run: _spread(run.later_turns)),
    ("turns for which blocks were kept", lambda run: f"{run.num_turns_kept:,}"),
    ("requests that waited for sessions", lambda run: f"{run.num_held:,}"),
)
"""Rows of runs with sessions of several turns."""


def lines_of(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose first column is on the left, all others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *cells)).rstrip()


def figures_table(runs: Sequence[tuple[str, SimFigures]]) -> Iterator[str]:
    """Yield the lines of a table of runs, side by side under their names."""
    rows = [("", *(name for name, _ in runs))]
    has_sent = any(run.sent_gb or run.num_declined for _, run in runs)
    has_states = any(run.kv_hit_rate is not None for _, run in runs)
    has_turns = any(run.later_turns.p50_ms is not None for _, run in runs)
    wanted = (
        *ROWS,
        *(SENDING if has_sent else ()),
        *(STATES if has_states else ()),
        *(SESSIONS if has_turns else ()),
    )
    rows += [(title, *(cell(run) for _, run in runs)) for title, cell in wanted]
    yield from lines_of(rows)
