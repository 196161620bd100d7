"""Takes over what systemd hands to a service: its listening socket (sd_listen_fds(3)) and where it
wants to be told how the service is (sd_notify(3)). The variables are removed, so that no process
that is started later takes them for its own.
"""

import re
import socket
from collections.abc import MutableMapping

from quire.server.app.notifier import NotifyTarget
from quire.server.config import InvalidOption
from quire.server.http.listen import CannotListen, adopt

FIRST_DESCRIPTOR = 3
NUMBER = re.compile(r"[0-9]{1,18}")
MICROSECONDS = 1_000_000


def inherited_socket(environ: MutableMapping[str, str], pid: int) -> socket.socket | None:
    """Return the socket to listen on that the process `pid` was started with; None if it was with
    none. Raises InvalidOption for what no server can listen on, and for several."""
    for_pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if not for_pid and not count:
        return None
    if _number("LISTEN_PID", for_pid) != pid:
        raise InvalidOption(
            f"LISTEN_PID is {for_pid}, but this process is {pid}: a socket was handed to another "
            "process. Start `quire` itself, or by `exec` in a script; without an inherited socket "
            "unset LISTEN_PID and LISTEN_FDS"
        )
    if _number("LISTEN_FDS", count) != 1:
        told = f" ({names})" if names else ""
        raise InvalidOption(
            f"LISTEN_FDS is {count}{told}, must be 1: Quire listens on one socket. Give the socket "
            "unit one ListenStream="
        )
    try:
        return adopt(FIRST_DESCRIPTOR)
    except CannotListen as error:
        named = f", {names}," if names else ""
        raise InvalidOption(f"LISTEN_FDS: the inherited socket{named} {error}") from None


def notify_target(environ: MutableMapping[str, str], pid: int) -> NotifyTarget | None:
    """Return where the service manager is told how the server is; None if it does not ask. Raises
    InvalidOption for variables that say nothing."""
    address = environ.pop("NOTIFY_SOCKET", "")
    usec, for_pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not address:
        return None
    if address[0] not in "/@" or "\0" in address:
        raise InvalidOption(
            f"NOTIFY_SOCKET is {address!r}: expected a path from / on, or @ and an abstract name"
        )
    watchdog_s = None
    if usec and (not for_pid or _number("WATCHDOG_PID", for_pid) == pid):
        watchdog_s = _number("WATCHDOG_USEC", usec) / MICROSECONDS or None
    return NotifyTarget(address, watchdog_s)


def _number(name: str, given: str) -> int:
    if not NUMBER.fullmatch(given):
        raise InvalidOption(f"{name} is {given!r}, must be a whole number")
    return int(given)
