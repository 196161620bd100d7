"""Tells a service manager how the server is, by the protocol of sd_notify(3): lines of `NAME=value`
in datagrams to a socket of the manager.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

logger = logging.getLogger(__name__)


class NotifyTarget(NamedTuple):
    """The manager's socket: a path, or `@` and an abstract name. `watchdog_s` is how long it lets
    the server be silent; None: for ever."""

    address: str
    watchdog_s: float | None


class Notifier:
    """Sends to a manager, or nowhere where there is none. It never waits: what the manager has no
    room for is sent with the next message."""

    def __init__(self, target: NotifyTarget | None) -> None:
        self._target = target
        self._status: str | None = None
        self._unsent: dict[str, str] = {}
        self._has_failed = False

    def ready(self) -> None:
        """Tell that requests are taken."""
        self._send({"READY": "1", **self._changed("serving")})

    def stopping(self, status: str) -> None:
        """Tell that the server begins to end, and how far that is."""
        self._send({"STOPPING": "1", **self._changed(status)})

    def status(self, status: str) -> None:
        """Tell how the server is, in one line for people, unless it was told last."""
        changed = self._changed(status)
        if changed or self._unsent:
            self._send(changed)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Tell during the block that the event loop runs, twice in the time of the watchdog, if
        any."""
        watchdog_s = None if self._target is None else self._target.watchdog_s
        telling = asyncio.create_task(self._tell_watchdog(watchdog_s))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _tell_watchdog(self, watchdog_s: float | None) -> None:
        while watchdog_s is not None:
            self._send({"WATCHDOG": "1"})
            await asyncio.sleep(watchdog_s / 2)

    def _changed(self, status: str) -> Mapping[str, str]:
        line = " ".join(status.split())
        if line == self._status:
            return {}
        self._status = line
        return {"STATUS": line}

    def _send(self, told: Mapping[str, str]) -> None:
        if self._target is None:
            return
        self._unsent |= told
        address = self._target.address
        name = f"\0{address[1:]}" if address.startswith("@") else address
        lines = "\n".join(f"{each}={value}" for each, value in self._unsent.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(lines.encode(), name)
        except BlockingIOError:
            return
        except OSError as error:
            if not self._has_failed:
                logger.warning("NOTIFY_SOCKET %s cannot be sent to: %s", address, error)
            self._has_failed = True
        self._unsent = {}
