"""A server over int8 weights, as a user starts it."""

import pytest

from tests.e2e.server_process import server_process

BODY = {"prompt": "The king", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


@pytest.mark.long  # engines over int8 weights are in every run, tests/engine/test_quantization.py
@pytest.mark.usefixtures("w8a8_kernel")
def test_quantised_server_answers_and_says_that_it_is() -> None:
    with server_process("--quantization", "int8") as server:
        reply = server.client.post("/v1/completions", json=BODY)
        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == BODY["max_tokens"]
        assert reply.json()["choices"][0]["text"]
        assert "weights in int8" in server.log()
