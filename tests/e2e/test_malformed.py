"""Whatever bytes come, the answer is a 4xx with an error object, and the server still serves."""

import itertools

import httpx
import pytest

from tests.e2e.malformed import malformed
from tests.e2e.server_process import server_process

NUM_BODIES = 2000


@pytest.mark.long  # tests/server/apis/openai/test_errors.py sends any object in every run
def test_malformed_bodies_are_refused_and_the_server_still_serves() -> None:
    with server_process() as server:
        for index, (path, body) in enumerate(itertools.islice(malformed(seed=7), NUM_BODIES)):
            reply = server.client.post(path, content=body)
            assert 400 <= reply.status_code < 500, (index, body[:200], reply.text)
            error = reply.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}, (index, body[:200])
            assert error["message"] and error["type"] and error["code"]
        reply = server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert reply.status_code == 200
        assert server.client.get("/readyz").status_code == 200
        _raw_garbage(server.url)
        assert server.client.get("/readyz").status_code == 200


def _raw_garbage(url: str) -> None:
    """Not even HTTP, or HTTP that stops in the middle."""
    import socket

    host, port = httpx.URL(url).host, httpx.URL(url).port
    assert port is not None
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    for sent in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", head, head + b'{"prompt": "x"'):
        with socket.create_connection((host, port), timeout=10) as raw:
            raw.sendall(sent)
