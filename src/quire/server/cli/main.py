"""The `quire` command. A signal while it still imports ends it with one line, not a traceback:
nothing that takes time is imported at the top of this module.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from quire.server.app.exit_codes import FAILED_START, KILLED_BY
from quire.server.cli.output import OutputLost, flush

CLEANING_UP = frozenset(("bench", "chat", "top"))
"""The commands that handle signals themselves: they clean up behind what they have started."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        try:
            return run(sys.argv[1:] if argv is None else argv)
        finally:
            flush()
    except OutputLost as error:
        print(f"quire: {error}", file=sys.stderr)
        return FAILED_START


def run(argv: Sequence[str]) -> int:
    with ended_in_a_line():
        from quire.server.cli.commands import run_command

        if not CLEANING_UP.intersection(argv[:1]):
            return run_command(argv)
    return run_command(argv)


@contextmanager
def ended_in_a_line() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process within, until a server takes them over."""
    before = {each: signal.signal(each, _end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end(signum: int, frame: FrameType | None) -> None:
    """End the process at once: an exception could be raised in any module that is being
    imported."""
    os.write(2, f"quire: ended by {signal.Signals(signum).name}\n".encode())
    os._exit(KILLED_BY + signum)
