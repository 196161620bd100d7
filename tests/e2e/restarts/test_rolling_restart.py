"""Servers that follow each other on one socket refuse and break off nothing, as the real `openai`
client sees it, without a single retry.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from openai import AsyncOpenAI

from quire import __version__
from tests.e2e.restarts.inherited_socket import FLAGS, SocketHolder, held_socket
from tests.e2e.server_process import MODEL, STOP_WITHIN_S
from tests.long import long_but_for

NUM_STREAMS, NUM_SHORT = 6, 4
NUM_TOKENS, NUM_SHORT_TOKENS = 80, 4
GO_ON_S = 1.0
"""Seconds of load before a restart and after it."""
TIMEOUT_S = 120.0


@dataclass
class Counts:
    """The requests of a run: how many there were, what failed, and the longest wait in seconds for
    a first token or a short answer."""

    num_streams: int = 0
    num_short: int = 0
    failures: list[str] = field(default_factory=list)
    longest_wait_s: float = 0.0

    def waited(self, began_s: float) -> None:
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)


class Load:
    """Clients that ask again as soon as they are answered, until `ends`."""

    def __init__(self, url: str) -> None:
        self.counts = Counts()
        self.texts: dict[int, set[str]] = {index: set() for index in range(NUM_STREAMS)}
        self.ends = False
        self._client = AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
        )

    async def stream(self, index: int) -> None:
        while not self.ends:
            began_s, text, reason = time.monotonic(), "", None
            try:
                chunks = await self._client.completions.create(
                    model=MODEL,
                    prompt=f"Enter {index}, alone. My lord,",
                    max_tokens=NUM_TOKENS,
                    temperature=0,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                async for chunk in chunks:
                    if not text:
                        self.counts.waited(began_s)
                    text += chunk.choices[0].text
                    reason = chunk.choices[0].finish_reason
                assert reason == "length", reason
            except Exception as error:  # whatever a client can raise
                self.counts.failures.append(f"stream {index}: {error!r}")
            self.texts[index].add(text)
            self.counts.num_streams += 1

    async def ask(self, *, keeps_connection: bool) -> None:
        headers = {} if keeps_connection else {"Connection": "close"}
        while not self.ends:
            began_s = time.monotonic()
            try:
                await self._client.completions.create(
                    model=MODEL,
                    prompt="Anon, sir.",
                    max_tokens=NUM_SHORT_TOKENS,
                    extra_headers=headers,
                )
                self.counts.waited(began_s)
            except Exception as error:  # whatever a client can raise
                self.counts.failures.append(f"short: {error!r}")
            self.counts.num_short += 1
            await asyncio.sleep(0.05)

    def workers(self) -> list[Coroutine[None, None, None]]:
        """All clients; half of those that ask shortly keep no connection for the next request."""
        asking = [self.ask(keeps_connection=index % 2 == 0) for index in range(NUM_SHORT)]
        return [*(self.stream(index) for index in range(NUM_STREAMS)), *asking]

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def load_on(url: str) -> AsyncIterator[Counts]:
    """Clients that ask without pause during the block; at its end each stream must have said the
    same each time, whichever server it came from."""
    load = Load(url)
    tasks = [asyncio.create_task(each) for each in load.workers()]
    await asyncio.sleep(GO_ON_S)
    yield load.counts
    await asyncio.sleep(GO_ON_S)
    load.ends = True
    await asyncio.gather(*tasks)
    await load.close()
    assert load.counts.failures == []
    assert all(len(texts) == 1 for texts in load.texts.values())
    print(load.counts)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[SocketHolder]:
    with held_socket(tmp_path) as held:
        yield held


async def beside(action: Callable[[], object]) -> None:
    """Do something that takes a while, while the clients go on."""
    await asyncio.to_thread(action)


Restart: TypeAlias = Callable[[SocketHolder], Coroutine[None, None, None]]


async def overlapping(holder: SocketHolder) -> None:
    """The new server is ready before the old one is told to end."""
    old = holder.start()
    await beside(lambda: old.wait_told("READY=1"))
    async with load_on(holder.url):
        new = holder.start()
        await beside(lambda: new.wait_told("READY=1"))
        assert await asyncio.to_thread(old.stop) == 0
        assert "STOPPING=1" in old.told and "Traceback" not in old.log()
    assert await asyncio.to_thread(new.stop) == 0


async def one_after_the_other(holder: SocketHolder) -> None:
    """There is no room for two: the new server begins to load when the old one has ended."""
    old = holder.start()
    await beside(lambda: old.wait_told("READY=1"))
    async with load_on(holder.url):
        assert await asyncio.to_thread(old.stop) == 0
        new = holder.start()
        await beside(lambda: new.wait_told("READY=1"))
    assert await asyncio.to_thread(new.stop) == 0


@long_but_for([overlapping], "restart", [overlapping, one_after_the_other])
def test_a_restart_under_load_fails_no_request(holder: SocketHolder, restart: Restart) -> None:
    asyncio.run(restart(holder))


def post(body: dict[str, object]) -> bytes:
    data = json.dumps({"model": MODEL, "prompt": "My lord,", "ignore_eos": True, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def read_to_end(client: socket.socket) -> bytes:
    got = b""
    while part := client.recv(65536):
        got += part
    return got


@pytest.mark.long  # a restart under load has connections that wait in every run
def test_a_killed_server_loses_its_connections_and_nothing_that_waits(holder: SocketHolder) -> None:
    address = ("127.0.0.1", holder.port)
    old = holder.start()
    with socket.create_connection(address, TIMEOUT_S) as waits:
        waits.sendall(post({"max_tokens": 2}))  # the server still loads: it waits in the socket
        old.wait_told("STATUS=loading quire-bundled: ")
        os.kill(old.process.pid, signal.SIGKILL)
        old.process.wait(STOP_WITHIN_S)
        new = holder.start()
        new.wait_told("READY=1")
        assert waits.recv(65536).startswith(b"HTTP/1.1 200")
    with socket.create_connection(address, TIMEOUT_S) as taken:
        taken.sendall(post({"max_tokens": 900, "stream": True}))
        while b"data:" not in taken.recv(65536):
            pass
        os.kill(new.process.pid, signal.SIGKILL)
        new.process.wait(STOP_WITHIN_S)
        try:
            assert b"[DONE]" not in read_to_end(taken)
        except ConnectionResetError:
            pass


def ask(client: httpx.Client, path: str, **request: Any) -> dict[str, Any]:
    reply = client.post(path, **request)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.long  # batches go on after a restart in test_batches.py
def test_a_batch_given_in_a_drain_is_done_by_the_next_server(
    holder: SocketHolder, tmp_path: Path
) -> None:
    """The next server waits for the directory, which the old one still has."""
    directory = ("--batch-dir", str(tmp_path / "batches"))
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2}
    lines = json.dumps({**line, "body": body}).encode()
    old = holder.start(*directory)
    with (
        httpx.Client(base_url=holder.url, timeout=TIMEOUT_S) as first,
        httpx.Client(base_url=holder.url, timeout=TIMEOUT_S) as second,
    ):
        assert first.get("/livez").status_code == second.get("/livez").status_code == 200
        new = holder.start(*directory)
        while "is in use by another server" not in new.log():
            time.sleep(0.05)
            assert new.process.poll() is None
        old.process.terminate()
        old.wait_told("STOPPING=1")
        given = {"file": ("lines", lines), "purpose": (None, "batch")}
        file = ask(first, "/v1/files", files=given)
        asked = {"input_file_id": file["id"], "endpoint": line["url"], "completion_window": "24h"}
        batch = ask(second, "/v1/batches", json=asked)
        assert old.process.wait(STOP_WITHIN_S) == 0
        new.wait_told("READY=1")
        while batch["status"] != "completed":
            assert batch["status"] in ("validating", "in_progress", "finalizing")
            time.sleep(0.05)
            batch = first.get(f"/v1/batches/{batch['id']}").json()
    assert batch["request_counts"]["completed"] == 1
    assert new.stop() == 0


def test_two_owners_of_the_address_are_refused(holder: SocketHolder) -> None:
    server = holder.start("--port", "8001")
    assert server.process.wait(STOP_WITHIN_S) == 2
    told = "--port is given, but the server listens on the socket that it inherited (LISTEN_FDS), "
    assert f"{told}{holder.url}: leave it out" in server.log()


@pytest.mark.long  # the sockets of every run are handed over as systemd does
def test_systemd_hands_over_its_socket(tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate is not installed: Debian's package `systemd` has it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    passed = [f"--setenv={name}" for name in ("PYTHONPATH", "PATH", "HOME") if name in os.environ]
    serve = (sys.executable, "-m", "quire.server.cli", "serve", "bundled", *FLAGS)
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [activate, "--listen", address, *passed, "--fdname=quire", *serve],
            stdout=log,
            stderr=log,
        )
    try:
        assert _answer(address).status_code == 200, (tmp_path / "log").read_text()
        process.terminate()
        assert process.wait(STOP_WITHIN_S) == 0
    finally:
        process.kill()
        process.wait(STOP_WITHIN_S)
    assert f"Quire {__version__} listens on http://{address}" in (tmp_path / "log").read_text()


def _answer(address: str) -> httpx.Response:
    """The first answer that comes: activation begins with a connection."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return httpx.get(f"http://{address}/readyz", timeout=TIMEOUT_S)
        except httpx.ConnectError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
