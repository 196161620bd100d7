"""The memory of bodies that were never finished goes back to the system."""

import socket
from contextlib import ExitStack

import httpx
import psutil
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

MIB = 1 << 20
NUM_CLIENTS = 20
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"
ALLOWED_GROWTH = 50 * MIB


def half_read(server: ServerProcess) -> float:
    return server.metric("quire:http_half_read_bytes")


@pytest.mark.long  # tests/server/http/test_bodies.py bounds such bodies in every run
def test_memory_of_half_sent_bodies_is_given_back() -> None:
    with server_process("--max-half-read-bytes", "1G") as server:
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        for _ in range(3):
            with ExitStack() as stack:
                for _ in range(NUM_CLIENTS):
                    url = httpx.URL(server.url)
                    assert url.port is not None
                    sock = socket.create_connection((url.host, url.port), timeout=30)
                    stack.enter_context(sock).sendall(HEAD + b"a" * 7_900_000)
                assert eventually(lambda: half_read(server) == NUM_CLIENTS * 7_900_000, 30)
        assert eventually(lambda: half_read(server) == 0, 30)
        assert eventually(lambda: process.memory_info().rss < before + ALLOWED_GROWTH, 30)
