"""Tells why an engine process has ended."""

import signal
from enum import StrEnum

from quire.engine.client import EngineEnd


class EndCause(StrEnum):
    """The causes of an engine's end."""

    KILLED = "killed"
    CRASHED = "crashed"
    PROTOCOL_ERROR = "protocol_error"


def cause_of(end: EngineEnd) -> EndCause:
    """Return why an engine has ended that nobody has asked to."""
    if end.unusable is not None:
        return EndCause.PROTOCOL_ERROR
    if end.exit_code == -signal.SIGKILL:
        return EndCause.KILLED
    return EndCause.CRASHED
