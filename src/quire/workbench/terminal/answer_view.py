"""Writes an answer to a terminal as it comes, and in the end its figures."""

import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from quire.workbench.terminal.chat_client import AnswerPiece, ChatUsage
from quire.workbench.terminal.visible_text import visible

ENDS = {"length": "ended at the most tokens", "tool_calls": "ended with a tool call"}
"""Reasons that a person wants to know of; an answer that ended by itself needs none."""


class AnswerView:
    """One answer. `clock` returns seconds; the answer was asked for when the view is made."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._began_s = clock()
        self._first_s: float | None = None
        self._last_s = self._began_s
        self._usage: ChatUsage | None = None
        self._finish_reason: str | None = None
        self._is_reasoning = False
        self.text = ""

    def take(self, piece: AnswerPiece) -> None:
        """Show a piece of the answer."""
        self._usage = piece.usage or self._usage
        self._finish_reason = piece.finish_reason or self._finish_reason
        if piece.text or piece.reasoning:
            self._last_s = self._clock()
            self._first_s = self._last_s if self._first_s is None else self._first_s
        if piece.reasoning:
            self._is_reasoning = True
            self._write(piece.reasoning, "dim italic")
        if piece.text:
            if self._is_reasoning:
                self._write("\n\n", "")
                self._is_reasoning = False
            self.text += piece.text
            self._write(piece.text, "")

    def _write(self, text: str, style: str) -> None:
        self._console.print(
            visible(text), style=style, end="", soft_wrap=True, markup=False, highlight=False
        )

    def end(self, how: str = "") -> None:
        """Show the figures, and `how` the answer ended where it did not end by itself."""
        if self._first_s is not None:
            self._write("\n", "")
        ended = how or ENDS.get(self._finish_reason or "", "")
        said = " · ".join((*self._figures(), *([ended] if ended else ())))
        if said:
            self._console.print(said, style="dim", markup=False, highlight=False)

    def _figures(self) -> Iterator[str]:
        if self._first_s is not None:
            yield f"first token after {self._first_s - self._began_s:.2f} s"
        if self._usage is None:
            return
        num_tokens = self._usage.completion_tokens
        took_s = self._last_s - (self._first_s or self._last_s)
        if num_tokens > 1 and took_s > 0:
            yield f"{(num_tokens - 1) / took_s:.1f} tokens/s"
        details = self._usage.prompt_tokens_details
        cached = 0 if details is None else details.cached_tokens or 0
        yield f"{self._usage.prompt_tokens} prompt tokens, {cached} of them cached"
        yield f"{num_tokens} output tokens"


@contextmanager
def without_echo() -> Iterator[None]:
    """Let keys that are pressed meanwhile not show; those of a line are read afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
