"""Draws the live view of a model as lines that fit a terminal of any size."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from quire.workbench.terminal.block_map import REQUEST_COLOURS, cells_of, draw_map, legend
from quire.workbench.terminal.live_state import LiveState, RequestState
from quire.workbench.terminal.live_targets import pace_words, request_words
from quire.workbench.terminal.visible_text import on_one_line

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
LANE_GLYPHS, PLAIN_LANE_GLYPHS = ("█", "─"), ("#", "-")
"""A lane is filled with the first and ends with the second."""
KEYS = "q leaves   p pauses"
MAX_NAME_CHARS = 60
MAX_WHY_CHARS = 120
LANE_SHARE = 0.4
"""The share of the lines below the figures that requests have, unless the map leaves more."""
SPARK_WIDTH = 30
LEAST_HEIGHT, LEAST_WIDTH = 8, 30
"""Smaller terminals get the figures alone."""


class ScreenState(NamedTuple):
    """The state of the screen: `notice` is what a person should know first, empty for nothing."""

    url: str
    notice: str
    is_paused: bool
    is_ascii: bool


def draw(state: LiveState, view: ScreenState, width: int, height: int) -> Text:
    """Return at most `height` lines of at most `width` columns."""
    lines = [_head(state, view), *_figures(state, view)]
    room = height - len(lines) - 1
    if len(state.kinds) and height >= LEAST_HEIGHT and width >= LEAST_WIDTH:
        lines += _body(state, view, width, room)
    lines = lines[: height - 1]
    lines += [Text()] * (height - 1 - len(lines))
    keys = "p goes on   q leaves" if view.is_paused else KEYS
    lines.append(Text(keys, style="dim"))
    return _fitted(lines[-height:], width)


def _fitted(lines: Sequence[Text], width: int) -> Text:
    for line in lines:
        line.no_wrap = True
        line.truncate(width)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def _head(state: LiveState, view: ScreenState) -> Text:
    head = Text()
    head.append(on_one_line(state.model or "no model yet", MAX_NAME_CHARS), "bold")
    head.append(f" at {view.url}  ", "dim")
    head.append(
        on_one_line(state.state, MAX_NAME_CHARS),
        "bold green" if len(state.kinds) else "bold yellow",
    )
    if view.is_paused:
        head.append("  PAUSED", "bold reverse")
    if view.notice:
        head.append(f"  {on_one_line(view.notice, 200)}", "red")
    return head


def _figures(state: LiveState, view: ScreenState) -> list[Text]:
    figures, blocks = state.figures, state.figures.blocks
    step = "none" if figures.step_ms is None else f"{figures.step_ms:.1f} ms"
    hits = "none yet" if figures.hit_rate is None else f"{figures.hit_rate:.0%}"
    first = (
        f"running {figures.running}  waiting {figures.waiting}  preemptions {figures.preemptions}  "
        f"step {step}  prefix hits {hits}  tokens/s {figures.tokens_per_s:.1f} "
    )
    second = (
        f"blocks of {state.block_size} tokens: {blocks.active} in use  {blocks.cached} cached  "
        f"{blocks.free} free  {blocks.pinned} pinned  {blocks.swapped} swapped  "
    )
    lines = [
        Text(first).append(sparkline(list(state.tokens_per_s), view.is_ascii), "green"),
        Text(second).append(sparkline(list(state.num_used), view.is_ascii), "cyan"),
    ]
    if in_time := state.targets.words():
        lines.append(Text(in_time))
    if figures.pace is not None:
        lines.append(Text(pace_words(figures.pace)))
    return lines


def sparkline(values: Sequence[float], is_ascii: bool) -> str:
    """Return the newest values as bars against the largest of them."""
    bars = PLAIN_BARS if is_ascii else BARS
    shown = values[-SPARK_WIDTH:]
    most = max(shown, default=0.0)
    if most <= 0:
        return bars[0] * len(shown)
    return "".join(bars[min(int(each / most * len(bars)), len(bars) - 1)] for each in shown)


def _body(state: LiveState, view: ScreenState, width: int, room: int) -> list[Text]:
    """Return the map with its legend, and below it the lanes of requests."""
    lanes = state.lanes()
    wanted = len(lanes) + 1
    num_lanes = min(wanted, max(int(room * LANE_SHARE), 2))
    num_rows = max(room - num_lanes - 1, 1)
    cells = cells_of(state, width * num_rows)
    drawn = draw_map(state, cells, width, is_ascii=view.is_ascii)
    num_lanes = room - len(drawn) - 1  # the map may need less than it could have
    return [
        legend(state, cells, is_ascii=view.is_ascii),
        *drawn,
        *_lanes(state, lanes, view, width, num_lanes),
    ]


def _lanes(
    state: LiveState, lanes: Sequence[RequestState], view: ScreenState, width: int, room: int
) -> list[Text]:
    if room <= 0:
        return []
    shown = lanes[: room - 1] if len(lanes) > room else lanes
    lines = [_lane(each, view, width, state.now_s) for each in shown]
    num_more = len(lanes) - len(shown) + state.figures.unlisted
    if num_more and len(lines) < room:
        lines.append(Text(f"and {num_more} more requests", "dim"))
    if not lanes and not num_more:
        lines.append(Text("no requests", "dim"))
    return lines


def _lane(lane: RequestState, view: ScreenState, width: int, now_s: float) -> Text:
    """Return the line of a request: its name, how far it is of all that it may become, what came
    of its targets, and why it is where it is."""
    request, progress = lane
    colour = Style(color=REQUEST_COLOURS[request.n % len(REQUEST_COLOURS)])
    most = max(request.prompt + request.max_tokens, 1)
    num_all = max(min(width // 4, 24), 4)
    num_full = min(round(num_all * progress.computed / most), num_all)
    glyphs = PLAIN_LANE_GLYPHS if view.is_ascii else LANE_GLYPHS
    line = Text()
    line.append(f"{on_one_line(request.id, 24):<24} ", colour)
    line.append(glyphs[0] * num_full, colour)
    line.append(glyphs[1] * (num_all - num_full), "dim")
    line.append(f" {on_one_line(progress.phase, 10):<10}")
    line.append(f" {progress.computed}/{most} tokens, {progress.outputs} out")
    if progress.preemptions:
        line.append(f", preempted {progress.preemptions} times", "yellow")
    times, is_late = request_words(request, progress, now_s)
    if times:
        line.append(f"  {times}", "yellow" if is_late else "green")
    if progress.why is not None:
        why = progress.why.text or progress.why.event.replace("_", " ")
        line.append(f"  {on_one_line(why, MAX_WHY_CHARS)}", "dim")
    if request.key:
        line.append(f"  {on_one_line(request.key, 20)}", "dim")
    return line
