"""Routers of others in front of two servers, in processes of their own. `make gateway-check`
installs them; what is not installed is skipped.
"""

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

INSTALLED = Path(__file__).parents[3] / ".gateways" / "venv" / "bin"
KEY = "key-of-the-tests"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Router:
    """A router as a program, with its flags and the command that they are of."""

    program: str
    flags: tuple[str, ...]
    command: tuple[str, ...] = ()


ROUTERS = (
    Router("vllm-router", ("--log-level", "warning")),
    Router("sglang-router", ("--log-level", "warn"), ("launch",)),
)


@dataclass(frozen=True, slots=True)
class Front:
    """A router that answers: a client with a key, one without, and the servers behind it."""

    client: httpx.Client
    stranger: httpx.Client
    servers: tuple[ServerProcess, ServerProcess]

    def direct(self, number: int) -> httpx.Client:
        """A client of one of the servers, past the router."""
        server = self.servers[number]
        server.client.headers.update(_with(KEY))
        return server.client

    def num_answered(self) -> list[float]:
        """How many requests each of the servers has ended that are still there."""
        return [
            server.metric("vllm:request_success_total")
            for server in self.servers
            if server.process.poll() is None
        ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def router_of(router: Router, urls: list[str]) -> Iterator[str]:
    """The router in front of these servers; its own URL."""
    port, program = free_port(), str(INSTALLED / router.program)
    words = [program, *router.command, "--port", str(port), "--worker-urls", *urls]
    words += ["--policy", "round_robin", "--prometheus-port", str(free_port()), "--api-key", KEY]
    words += ["--health-check-interval-secs", "1", "--worker-startup-check-interval", "1"]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*words, *router.flags], stdout=log, stderr=log, text=True)
        try:
            assert eventually(lambda: _is_ready(url), READY_WITHIN_S), _said(log.fileno())
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(url: str) -> bool:
    try:
        models = httpx.get(f"{url}/v1/models", headers=_with(KEY), timeout=5)
        return models.status_code == 200
    except httpx.HTTPError:
        return False


def _said(descriptor: int) -> str:
    return os.pread(descriptor, 1 << 16, 0).decode(errors="replace")


def _with(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def front_of(router: Router) -> Iterator[Front]:
    """Two servers with a key behind a router."""
    if not (INSTALLED / router.program).exists():
        pytest.skip(f"{router.program} is not installed: `make gateway-check` does that")
    flags = ("--api-key", KEY, "--dtype", "float32", "--log-level", "warning")
    with server_process(*flags) as first, server_process(*flags) as second:
        with router_of(router, [first.url, second.url]) as url:
            with (
                httpx.Client(base_url=url, headers=_with(KEY), timeout=60) as client,
                httpx.Client(base_url=url, timeout=60) as stranger,
            ):
                yield Front(client, stranger, (first, second))


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of a stream of events, which must have ended."""
    lines = [line[len("data: ") :] for line in text.splitlines() if line.startswith("data: ")]
    assert lines and lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
