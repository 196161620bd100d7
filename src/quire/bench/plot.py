"""The table as a drawing: per workload tokens/s and TTFT, a bar for each server's median and a dot
for each round. Plain SVG, so that nothing need be installed.
"""

from collections.abc import Callable, Sequence
from html import escape

from quire.bench.figures import Figures
from quire.bench.report import Report, ServerFacts, middle, number, throughput_of
from quire.bench.workloads import Workload

COLOURS = ("#3465a4", "#e07b39")
PANEL_WIDTH, BAR_HEIGHT = 420, 22
LABEL_WIDTH, VALUE_WIDTH = 30, 60
MARGIN, TITLE_HEIGHT = 16, 24


def _text(x: float, y: float, said: str, *, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(said)}</text>'


def _bar(x: float, y: float, values: Sequence[float], scale: float, colour: str) -> str:
    """The median as a bar, each round as a dot; `scale` is in pixels for one unit."""
    height = BAR_HEIGHT - 6
    centre = middle(values)
    width = (centre or 0) * scale
    bar = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}" '
        'fill-opacity="0.55"/>'
    )
    dots = "".join(
        f'<circle cx="{x + value * scale:.1f}" cy="{y + height / 2:.1f}" r="3" fill="{colour}"/>'
        for value in values
    )
    end = x + max([width, *(value * scale for value in values)]) + 8
    return bar + dots + _text(end, y + height - 3, number(centre))


def _panel(title: str, rows: Sequence[tuple[str, list[float]]], *, x: float, y: float) -> list[str]:
    """One measure of one workload; all its rows have one scale."""
    most = max((value for _, values in rows for value in values), default=0) or 1
    scale = (PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH) / most
    drawn = [_text(x, y + 14, title, size=13)]
    for index, (label, values) in enumerate(rows):
        top = y + TITLE_HEIGHT + index * BAR_HEIGHT
        drawn.append(_text(x, top + 13, label))
        colour = COLOURS[index % len(COLOURS)]
        drawn.append(_bar(x + LABEL_WIDTH, top, values, scale, colour))
    return drawn


def _rows(
    report: Report, workload: Workload, measure: Callable[[Figures], float | None]
) -> list[tuple[str, list[float]]]:
    def values(server: ServerFacts) -> list[float]:
        told = (measure(run.figures) for run in report.runs_of(workload, server))
        return [value for value in told if value is not None]

    return [(server.label, values(server)) for server in report.servers]


def draw(report: Report) -> str:
    """The SVG's text."""
    drawn: list[str] = []
    y = float(MARGIN)
    for server in report.servers:
        drawn.append(_text(MARGIN, y + 12, f"{server.label}: {server.url}, model {server.model}"))
        y += 18
    if report.startup_s:
        starts = [("s", list(report.startup_s))]
        drawn += _panel("startup: seconds to ready", starts, x=MARGIN, y=y)
        y += TITLE_HEIGHT + BAR_HEIGHT + MARGIN
    for workload in report.workloads:
        rate = _rows(report, workload, throughput_of(workload))
        first = _rows(report, workload, lambda figures: figures.first_token.p50_ms)
        second_x = MARGIN * 2 + PANEL_WIDTH
        drawn += _panel(f"{workload.name}: {workload.unit}", rate, x=MARGIN, y=y)
        drawn += _panel(f"{workload.name}: TTFT p50, ms", first, x=second_x, y=y)
        y += TITLE_HEIGHT + BAR_HEIGHT * len(report.servers) + MARGIN
    width, height = 3 * MARGIN + 2 * PANEL_WIDTH, int(y) + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
