"""Draws blocks as cells of a map that fits where it is drawn: where there are more blocks than
cells, a cell stands for several in a row and shows what most of them are."""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from quire.workbench.terminal.live_events import STATES
from quire.workbench.terminal.live_state import IN_USE, SHARED, LiveState

Number = TypeVar("Number", np.uint8, np.int64, np.float64)
NAMES = (*(name.replace("_", " ") for name in STATES), "in use", "shared")
"""The kinds of blocks in words, by their numbers."""
DRAWN = (2, 3, 4, IN_USE, SHARED, 1, 5, 6, 7)
"""The kinds in the order of the legend; the null block is drawn as a free one."""
GLYPHS = {1: "·", 2: "▒", 3: "▓", 4: "█", 5: "·", 6: "▒", 7: "▚", IN_USE: "█", SHARED: "◆"}
PLAIN_GLYPHS = {1: ".", 2: "c", 3: "P", 4: "h", 5: ".", 6: "c", 7: "w", IN_USE: "#", SHARED: "S"}
"""The glyphs of terminals that know ASCII alone. Kinds differ by glyph, not by colour alone."""
COLOURS = {
    1: "bright_black",
    2: "cyan",
    3: "yellow",
    4: "white",
    5: "bright_black",
    6: "blue",
    7: "magenta",
    IN_USE: "green",
    SHARED: "bright_white",
}
REQUEST_COLOURS = (
    "green",
    "bright_blue",
    "bright_magenta",
    "bright_yellow",
    "bright_red",
    "bright_cyan",
)
OLD_S = 60.0
"""Blocks that have been cached for longer are drawn dim."""


class Cells(NamedTuple):
    """The cells of a map.

    kinds: [num_cells] the kind of most blocks of each.
    holders: [num_cells] the request that holds most of those in use, roughly: the largest number
        among them; -1 without.
    since_s: [num_cells] when the newest of its blocks came to be so.
    num_blocks: the blocks of a cell.
    """

    kinds: NDArray[np.intp]
    holders: NDArray[np.int64]
    since_s: NDArray[np.float64]
    num_blocks: int


def cells_of(state: LiveState, max_cells: int) -> Cells:
    """Return the fewest blocks a cell that need no more than so many cells."""
    num_all = len(state.kinds)
    each = max(-(-num_all // max(max_cells, 1)), 1)
    kinds = _rows(state.kinds, each, len(NAMES))
    counts = np.stack([(kinds == kind).sum(axis=1) for kind in range(len(NAMES))])
    counts[1] += counts[0]  # the null block is never anybody's
    counts[0] = 0
    return Cells(
        counts.argmax(axis=0),
        _rows(state.holders, each, -1).max(axis=1, initial=-1),
        _rows(state.since_s, each, 0.0).max(axis=1, initial=0.0),
        each,
    )


def _rows(values: NDArray[Number], each: int, filler: float) -> NDArray[Number]:
    """Return values as rows of so many each, the last filled up."""
    filling = np.full(-len(values) % each, filler, values.dtype)
    return np.concatenate((values, filling)).reshape(-1, each)


def draw_map(state: LiveState, cells: Cells, width: int, *, is_ascii: bool) -> list[Text]:
    """Return the lines of a map of this width."""
    glyphs = PLAIN_GLYPHS if is_ascii else GLYPHS
    lines = []
    for first in range(0, len(cells.kinds), width):
        line = Text(no_wrap=True, end="")
        for index in range(first, min(first + width, len(cells.kinds))):
            kind = int(cells.kinds[index])
            line.append(glyphs[kind], _style(state, cells, index, kind))
        lines.append(line)
    return lines


def _style(state: LiveState, cells: Cells, index: int, kind: int) -> Style:
    if kind == IN_USE:
        return Style(color=REQUEST_COLOURS[int(cells.holders[index]) % len(REQUEST_COLOURS)])
    is_old = kind == 2 and state.now_s - float(cells.since_s[index]) > OLD_S
    return Style(color=COLOURS[kind], dim=is_old)


def legend(state: LiveState, cells: Cells, *, is_ascii: bool) -> Text:
    """Return what the glyphs stand for, of the kinds that are there, and how many blocks a cell
    is."""
    glyphs = PLAIN_GLYPHS if is_ascii else GLYPHS
    text = Text(no_wrap=True, end="")
    present = set(np.unique(cells.kinds).tolist())
    for kind in DRAWN:
        if kind in present:
            text.append(glyphs[kind], Style(color=COLOURS[kind]))
            text.append(f" {NAMES[kind]}  ")
    num = cells.num_blocks
    text.append(f"a cell is {num} blocks" if num > 1 else "a cell is a block", "dim")
    return text
