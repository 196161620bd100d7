"""The log of a server whose replicas are on Ray: what Ray says in this process is logged as the
server's own lines are; what it passes on of others, through standard error, can be made JSON.
"""

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from quire.logs import JsonFormatter

RAYS = ("ray", "ray.serve")
"""The loggers that Ray gives handlers of their own as it is imported."""
PASSED_ON = re.compile(r"(?:\x1b\[\d+m)?\([^()]*pid=\d+[^()]*\)(?:\x1b\[0m)? ")
"""The beginning of a line that Ray passes on, coloured or not."""


def join_logs() -> None:
    """Let the handlers of this process' log have the lines of Ray, which is imported."""
    for name in RAYS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


@contextmanager
def json_on_stderr() -> Iterator[None]:
    """Make every line that is printed to standard error an object, where it is none yet."""
    before = sys.stderr
    sys.stderr = JsonLines(before)
    try:
        yield
    finally:
        sys.stderr = before


class JsonLines(io.TextIOBase):
    """Writes each line to `out` as an object: a line that Ray passes on and that is one as it is,
    others as messages of a logger `ray`. Several threads may write."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._formatter = JsonFormatter()
        self._begun = threading.local()

    def write(self, text: str) -> int:
        """Write text; its last line waits for its end."""
        *lines, rest = (getattr(self._begun, "line", "") + text).split("\n")
        self._begun.line = rest
        told = "".join(self._as_object(line) + "\n" for line in lines if line.strip())
        if told:
            self._out.write(told)
            self._out.flush()
        return len(text)

    def fileno(self) -> int:
        """Return the descriptor that lies below."""
        return self._out.fileno()

    def _as_object(self, line: str) -> str:
        line = PASSED_ON.sub("", line, count=1).rstrip()
        try:
            if isinstance(json.loads(line), dict):
                return line
        except ValueError:
            pass
        return self._formatter.format(logging.makeLogRecord({"name": "ray", "msg": line}))
