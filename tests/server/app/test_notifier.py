"""What a service manager is told, by a socket of its own."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.server.app.notifier import Notifier, NotifyTarget


class Manager:
    """A socket such as systemd has, and how a service is told of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.setblocking(False)

    def notifier(self, watchdog_s: float | None = None) -> Notifier:
        return Notifier(NotifyTarget(self.address, watchdog_s))

    def told(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(65536).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    is_path = request.param == "path"
    made = Manager(str(tmp_path / "notify") if is_path else f"@quire-test-{os.getpid()}")
    with made.socket:
        yield made


def test_a_life_is_told_and_nothing_twice(manager: Manager) -> None:
    notifier = manager.notifier()
    notifier.status("loading a model: weights 1/2")
    notifier.status("loading a model: weights 1/2")
    notifier.status("waits\nfor READY=1")
    notifier.ready()
    notifier.stopping("draining: 1 requests are open")
    notifier.status("draining: 0 requests are open")
    assert manager.told() == [
        "STATUS=loading a model: weights 1/2",
        "STATUS=waits for READY=1",
        "READY=1\nSTATUS=serving",
        "STOPPING=1\nSTATUS=draining: 1 requests are open",
        "STATUS=draining: 0 requests are open",
    ]


def test_what_there_is_no_room_for_is_told_later(manager: Manager) -> None:
    notifier = manager.notifier()
    for number in range(10_000):  # more than the socket holds
        notifier.status(f"loading {number}")
    notifier.ready()
    held = manager.told()
    assert len(held) < 10_000 and not any("READY" in each for each in held)
    notifier.status("serving")
    assert manager.told() == ["STATUS=serving\nREADY=1"]


def test_the_watchdog_is_told_while_the_loop_runs(manager: Manager) -> None:
    async def live(notifier: Notifier) -> None:
        async with notifier.watched():
            await asyncio.sleep(0.5)

    asyncio.run(live(manager.notifier()))
    assert manager.told() == []
    asyncio.run(live(manager.notifier(watchdog_s=0.2)))
    told = manager.told()
    assert set(told) == {"WATCHDOG=1"} and 2 <= len(told) <= 6


def test_nobody_to_tell_is_well() -> None:
    notifier = Notifier(None)
    notifier.status("x")
    notifier.ready()


def test_a_manager_that_is_gone_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(NotifyTarget(str(tmp_path / "gone"), None))
    with caplog.at_level(logging.WARNING):
        notifier.status("x")
        notifier.ready()
    (record,) = caplog.records
    assert "gone cannot be sent to" in record.getMessage()
