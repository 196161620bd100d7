"""Writes to standard output, which may take nothing more, as on a full disk or a closed pipe."""

import os
import sys


class OutputLost(Exception):
    """Standard output takes no more; the text says why, for people."""


def print_line(text: str) -> None:
    """Write a line to standard output, at once. Raises OutputLost."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise _lost(error) from None


def flush() -> None:
    """Write what `print` has held back. Raises OutputLost."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise _lost(error) from None


def _lost(error: OSError) -> OutputLost:
    """Return the error, and send what is still buffered nowhere: the interpreter would try to write
    it again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OutputLost(f"cannot write to standard output: {error.strerror}")
