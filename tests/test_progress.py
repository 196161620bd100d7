"""Progress on a terminal and elsewhere."""

import io
import logging

import pytest

from quire.progress import Progress, log_format


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PARTS = [("weights", 0, 4), ("weights", 1, 4), ("weights", 4, 4), ("probe", 0, 1), ("probe", 1, 1)]


def test_each_part_is_a_line_where_there_is_no_terminal() -> None:
    stream, said = io.StringIO(), list[str]()
    progress = Progress(stream, said.append, unit="")
    for part in PARTS:
        progress.show(*part)
    progress.close()
    assert said == ["weights", "probe"]
    assert stream.getvalue() == ""


def test_a_terminal_has_a_bar_that_is_gone_in_the_end() -> None:
    terminal, said = Terminal(), list[str]()
    progress = Progress(terminal, said.append, unit="req")
    for part in PARTS:
        progress.show(*part)
    shown = terminal.getvalue()
    progress.close()
    assert said == []
    assert "weights" in shown and "probe" in shown and "0/4" in shown
    progress.close()
    assert terminal.getvalue().endswith("\r") and "\n" not in terminal.getvalue()


@pytest.mark.parametrize(("stream", "start"), [(io.StringIO(), ""), (Terminal(), "\r\x1b[K")])
def test_a_log_line_on_a_terminal_replaces_the_bar(stream: io.StringIO, start: str) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(log_format(stream, "%(message)s")))
    handler.handle(logging.LogRecord("x", logging.INFO, "x", 1, "half full", None, None))
    assert stream.getvalue() == f"{start}half full\n"
