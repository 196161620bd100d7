"""Tells whether commands of a terminal can run here: they need one, and the extra `terminal`.

Nothing heavy is imported here.
"""

from importlib.util import find_spec
from typing import TextIO

from quire.extras import how_to_install

LIBRARIES = ("rich", "prompt_toolkit", "httpx")


class CannotRun(Exception):
    """A command cannot run here; the text says what to do instead."""


def check_libraries() -> None:
    """Raise CannotRun where a library of the extra is missing."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise CannotRun(
            f"needs {', '.join(missing)}, installed with the extra `terminal`: "
            + how_to_install("terminal")
        )


def check_terminal(streams: dict[str, TextIO], instead: str) -> None:
    """Raise CannotRun where a stream is no terminal; `instead` says what to do then."""
    others = [name for name, stream in streams.items() if not stream.isatty()]
    verb = "are not" if len(others) > 1 else "is not"
    if others:
        raise CannotRun(f"needs a terminal, which {' and '.join(others)} {verb}; {instead}")
