"""Plots a report: for each workload the distributions of its times, and the tokens per
second of each round. PNG or SVG, by matplotlib, which the extra `plot` installs.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quire.workbench.bench.figures import LoadFigures
from quire.workbench.bench.report import BenchReport, ServerFacts, middle, number, throughput_of
from quire.workbench.bench.workloads import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2a6f97", "#e07a1f")
"""The first server is drawn in the first colour, the second in the second. People who cannot tell
red from green can tell these two apart."""
LINES: tuple[tuple[float, Sequence[float]], ...] = ((0, ()), (0, (5, 1.5)))
ROW_HEIGHT, WIDTH, HEAD_HEIGHT = 2.6, 15.0, 1.1
DPI = 150
WIDE = 30
"""A scale is logarithmic from this ratio of its 99th percentile to its least value on."""


class PlotColumn(NamedTuple):
    """A column of distributions; `values` are in milliseconds."""

    title: str
    values: Callable[[LoadFigures], Sequence[float]]


MEASURES = (
    PlotColumn("Time to first token", lambda figures: figures.samples.first_token_ms),
    PlotColumn("Inter-token latency", lambda figures: figures.samples.inter_token_ms),
    PlotColumn("End-to-end time", lambda figures: figures.samples.end_to_end_ms),
)


def draw(report: BenchReport, path: Path) -> None:
    """Write the picture, in the format of the path's suffix."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    heights = [1.0] * len(report.workloads) + [0.5] * bool(report.startup_s)
    size = (WIDTH, HEAD_HEIGHT + ROW_HEIGHT * sum(heights))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle("\n".join(_head(report)), x=0.01, ha="left", fontsize=10)
    grid = figure.add_gridspec(len(heights), len(MEASURES) + 1, height_ratios=heights)
    for row, workload in enumerate(report.workloads):
        for column, measure in enumerate(MEASURES):
            axes = figure.add_subplot(grid[row, column])
            _draw_distribution(axes, report, workload, measure)
        _draw_rates(figure.add_subplot(grid[row, len(MEASURES)]), report, workload)
    if report.startup_s:
        _draw_startup(figure.add_subplot(grid[len(heights) - 1, 0]), report.startup_s)
    _add_legend(figure, report)
    with rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure.savefig(path, dpi=DPI)


def _head(report: BenchReport) -> Iterator[str]:
    yield f"quire bench {report.quire}, {report.date}, {report.machine}"
    if report.runs:
        num_rounds = 1 + max(run.round_index for run in report.runs)
        yield f"all requests of {num_rounds} rounds; curves say which share took no longer"


def _add_legend(figure: "Figure", report: BenchReport) -> None:
    from matplotlib.lines import Line2D

    if report.servers:
        handles = [
            Line2D([], [], color=COLOURS[index], linestyle=LINES[index], linewidth=2)
            for index in range(len(report.servers))
        ]
        labels = [f"{each.label}: {each.url}, {each.model}" for each in report.servers]
        figure.legend(handles, labels, loc="outside upper right", fontsize=9, frameon=False)


def _pooled(
    report: BenchReport, workload: Workload, server: ServerFacts, measure: PlotColumn
) -> list[float]:
    runs = report.runs_of(workload, server)
    return sorted(value for run in runs for value in measure.values(run.figures))


def _draw_distribution(
    axes: "Axes", report: BenchReport, workload: Workload, measure: PlotColumn
) -> None:
    """Draw the share of values up to each, and the median as a dot."""
    pools = [_pooled(report, workload, server, measure) for server in report.servers]
    for index, values in enumerate(pools):
        if not values:
            continue
        axes.ecdf(values, color=COLOURS[index], linestyle=LINES[index], linewidth=1.6)
        centre = middle(values)
        assert centre is not None
        axes.plot([centre], [0.5], "o", color=COLOURS[index], markersize=4)
        axes.text(
            0.98,
            0.04 + 0.1 * (len(pools) - 1 - index),
            f"median of {report.servers[index].label}: {number(centre)} ms",
            ha="right",
            fontsize=8,
            color=COLOURS[index],
            transform=axes.transAxes,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    drawn = sorted(value for values in pools for value in values)
    if drawn and drawn[0] > 0 and drawn[int(0.99 * (len(drawn) - 1))] / drawn[0] > WIDE:
        axes.set_xscale("log")
    elif drawn and drawn[0] < drawn[-1] / 2:
        axes.set_xlim(left=0)
    elif not drawn:
        axes.text(0.5, 0.5, "nothing was timed", ha="center", transform=axes.transAxes)
    axes.set_title(f"{workload.name}: {measure.title}", fontsize=10)
    axes.set_xlabel("ms", fontsize=8)
    axes.set_ylabel("share of values", fontsize=8)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    _plain(axes)


def _draw_rates(axes: "Axes", report: BenchReport, workload: Workload) -> None:
    rate_of = throughput_of(workload)
    rows = []
    for server in report.servers:
        rates = [rate_of(run.figures) for run in report.runs_of(workload, server)]
        rows.append((server.label, [rate for rate in rates if rate is not None]))
    _draw_rounds(axes, rows)
    axes.set_title(f"{workload.name}: tokens per second by round", fontsize=10)
    axes.set_xlabel(workload.unit, fontsize=8)


def _draw_startup(axes: "Axes", startup_s: Sequence[float]) -> None:
    _draw_rounds(axes, [("", list(startup_s))])
    axes.set_title("startup: time until ready, by start", fontsize=10)
    axes.set_xlabel("s", fontsize=8)


def _draw_rounds(axes: "Axes", rows: Sequence[tuple[str, list[float]]]) -> None:
    """Draw a dot for each round, and the median as a bar across."""
    for index, (_, values) in enumerate(rows):
        place = len(rows) - 1 - index
        axes.plot(values, [place] * len(values), "o", color=COLOURS[index], alpha=0.6)
        centre = middle(values)
        if centre is not None:
            axes.plot([centre] * 2, [place - 0.25, place + 0.25], color=COLOURS[index], linewidth=2)
            axes.annotate(
                number(centre),
                (centre, place + 0.25),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=COLOURS[index],
            )
    axes.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.set_xlim(0, 1.1 * max((value for _, values in rows for value in values), default=1))
    _plain(axes)


def _plain(axes: "Axes") -> None:
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
