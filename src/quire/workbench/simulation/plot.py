"""Plots a simulation: the distributions of its times, a curve for each run. PNG or SVG, by
matplotlib, which the extra `plot` installs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.workbench.simulation.simulation import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2a6f97", "#e07a1f", "#5b8e3e", "#7b4b94")
LINES: tuple[tuple[float, Sequence[float]], ...] = (
    (0, ()),
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
)
SIZE, DPI = (13.0, 4.0), 150
WIDE = 30
"""A scale is logarithmic from this ratio of its 99th percentile to its first on."""


def draw(title: str, runs: Sequence[tuple[str, SimulationResult]], path: Path) -> None:
    """Write the picture of up to four runs, in the format of the path's suffix."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    axes = figure.subplots(1, 3)
    measures = {
        "Time to first token": _first_ms,
        "Inter-token latency": _gaps_ms,
        "End-to-end time": _whole_ms,
    }
    for place, (name, values) in zip(axes, measures.items(), strict=True):
        _draw_curves(place, name, [(label, sorted(values(each))) for label, each in runs])
    axes[0].legend(loc="lower right", fontsize=8, frameon=False)
    with rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure.savefig(path, dpi=DPI)


def _draw_curves(axes: "Axes", title: str, curves: Sequence[tuple[str, list[float]]]) -> None:
    """Draw for each run which share of its values is no larger."""
    is_wide = False
    for index, (label, values) in enumerate(curves):
        if not values:
            continue
        axes.ecdf(values, color=COLOURS[index], linestyle=LINES[index], linewidth=1.6, label=label)
        low, high = (values[int(at * (len(values) - 1))] for at in (0.01, 0.99))
        is_wide = is_wide or high > WIDE * low > 0
    if is_wide:
        axes.set_xscale("log")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("ms", fontsize=8)
    axes.set_ylabel("share of values", fontsize=8)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _first_ms(run: SimulationResult) -> list[float]:
    answers = run.clients.answers
    return [1e3 * (each.first_s - each.sent_s) for each in answers if each.first_s is not None]


def _gaps_ms(run: SimulationResult) -> list[float]:
    return [1e3 * each for each in run.clients.gaps_s]


def _whole_ms(run: SimulationResult) -> list[float]:
    answers = run.clients.answers
    return [1e3 * (each.last_s - each.sent_s) for each in answers if each.first_s is not None]
