"""Shows how far something is: a bar on a terminal, elsewhere a line as each part of it begins."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm  # type: ignore[import-untyped]

CLEAR_LINE = "\r\x1b[K"


def log_format(stream: TextIO, text: str) -> str:
    """Return `text` for a log on `stream`: on a terminal its lines replace a bar that is being
    drawn, and the bar comes again below them."""
    return CLEAR_LINE + text if stream.isatty() else text


class Progress:
    """Shows the progress of work whose parts have names. `say` takes the lines for people where
    `stream` is no terminal; `unit` is what is counted."""

    def __init__(self, stream: TextIO, say: Callable[[str], object], unit: str) -> None:
        self._stream = stream
        self._say = say
        self._unit = unit
        self._part: str | None = None
        self._bar: tqdm | None = None

    def show(self, part: str, done: int, total: int) -> None:
        """Show `done` of `total` units. The bar begins anew where the total is another."""
        begins = part != self._part
        self._part = part
        if not self._stream.isatty():
            if begins:
                self._say(part)
            return
        if self._bar is None:
            self._bar = _bar(self._stream, self._unit, part, total)
        bar = self._bar
        bar.set_description(part, refresh=False)
        if total != bar.total or done < bar.n:
            bar.reset(total)
        if begins:
            bar.refresh()
        bar.update(done - bar.n)

    def close(self) -> None:
        """Takes the bar off the terminal; it may be called again."""
        if self._bar is not None:
            self._bar.close()


def _bar(stream: TextIO, unit: str, part: str, total: int) -> "tqdm":
    from tqdm import tqdm  # slow to import, and seldom needed

    return tqdm(desc=part, total=total, file=stream, unit=unit, leave=False, dynamic_ncols=True)
