"""The cache is asked before and after a chat on a real server, and tells what a chat then finds."""

import pytest

from tests.e2e.server_process import server_process

CHAT = {
    "messages": [{"role": "user", "content": "Tell me of the king and his three daughters. " * 4}]
}


@pytest.mark.long  # test_prefixes.py asks the cache of its server in every run
def test_what_is_told_is_what_the_next_request_finds() -> None:
    with server_process() as server:

        def probe() -> dict[str, object]:
            reply = server.client.post("/v1/cache/probe", json=CHAT).raise_for_status()
            told: dict[str, object] = reply.json()
            return told

        def chat() -> dict[str, dict[str, int]]:
            reply = server.client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2})
            usage: dict[str, dict[str, int]] = reply.raise_for_status().json()["usage"]
            return usage

        before = probe()
        assert (before["cached_tokens"], before["miss"]) == (0, {"reason": "new", "token": 0})
        assert chat()["prompt_tokens_details"]["cached_tokens"] == 0
        after = probe()
        again = chat()
        assert after["prompt_tokens"] == again["prompt_tokens"]
        assert after["cached_tokens"] == again["prompt_tokens_details"]["cached_tokens"]
        assert after["device_tokens"] == after["cached_tokens"] and after["miss"] is None
        assert again["prompt_tokens_details"]["cached_tokens"] >= 16
