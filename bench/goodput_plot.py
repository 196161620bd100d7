"""A picture of goodput over load: a place for each trace, a curve for each contender."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from bench.contenders import BUDGETS, CONTENDERS
from bench.goodput_records import GoodputRow

SIZE, DPI = (13.0, 4.0), 110
COLOURS = ("#e07a1f", "#7b4b94", "#5b8e3e", "#2a6f97")
LINES = ("--", "-.", ":", "-")


def draw(rows: Sequence[GoodputRow], path: Path) -> None:
    """Write the picture, in the format of the path's suffix."""
    from matplotlib.figure import Figure

    traces = [list(group) for _, group in groupby(rows, key=lambda each: each.trace)]
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots(1, len(traces), squeeze=False)[0]
    others = [each.name for each in CONTENDERS[len(BUDGETS) :]]
    for place, found in zip(axes, traces, strict=True):
        loads = [row.load for row in found]
        place.fill_between(loads, [row.bound for row in found], 1, color="0.9", label="impossible")
        place.plot(loads, [row.best_budget for row in found], "0.3", label="best fixed budget")
        for name, colour, line in zip(others, COLOURS, LINES, strict=True):
            shares = [row.in_time[name] for row in found]
            place.plot(loads, shares, line, color=colour, marker="o", markersize=3, label=name)
        place.set_title(found[0].trace, fontsize=10)
        place.set_xlabel("load, of the capacity", fontsize=8)
        place.set_ylabel("requests in time", fontsize=8)
        place.set_ylim(0, 1)
        place.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        place.tick_params(labelsize=8)
        place.grid(alpha=0.3)
        place.spines[["top", "right"]].set_visible(False)
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.savefig(path, dpi=DPI)
