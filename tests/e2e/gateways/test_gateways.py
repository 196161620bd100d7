"""Routers of vLLM and SGLang in front of two servers with a key: what their users see, with both
servers there and with one of them killed.
"""

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.gateways.routers import ROUTERS, Front, Router, events_of, front_of
from tests.e2e.server_process import MODEL, eventually

PROMPT = "The old ship left the harbour"
MESSAGES = [{"role": "user", "content": "Who art thou?"}]
COMPLETION = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
BACK_WITHIN_S = 30.0
GATEWAY_ERRORS = (500, 502, 503, 504)


@pytest.fixture(scope="module", params=ROUTERS, ids=lambda router: router.program)
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    router: Router = request.param
    with front_of(router) as front:
        yield front


def completion(client: httpx.Client) -> str:
    """The text of a completion, which must come."""
    reply = client.post("/v1/completions", json=COMPLETION)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_completions_and_chats_are_those_of_a_server(front: Front) -> None:
    expected = completion(front.direct(0))
    assert completion(front.client) == completion(front.client) == expected
    direct = front.direct(1).post("/v1/chat/completions", json=CHAT).json()
    routed = front.client.post("/v1/chat/completions", json=CHAT).json()
    assert routed["choices"] == direct["choices"]
    assert routed["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]


def test_a_stream_comes_in_parts_and_ends(front: Front) -> None:
    text = completion(front.client)
    body = COMPLETION | {"stream": True, "stream_options": {"include_usage": True}}
    with front.client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        parts = list(reply.iter_text())
    events = events_of("".join(parts))
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == text
    assert len(parts) > 1 and events[-1]["usage"]
    chat = front.client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert events_of(chat.text)


def test_requests_go_to_both_servers(front: Front) -> None:
    before = front.num_answered()
    for _ in range(6):
        completion(front.client)
    after = front.num_answered()
    assert all(new > old for new, old in zip(after, before, strict=True))


def test_whoever_has_no_key_is_refused(front: Front) -> None:
    for headers in ({}, {"Authorization": "Bearer another"}):
        reply = front.stranger.post("/v1/completions", json=COMPLETION, headers=headers)
        assert reply.status_code == 401, reply.text


def test_an_error_of_the_server_reaches_the_client(front: Front) -> None:
    for body in (COMPLETION | {"temperature": -1}, CHAT | {"temperature": -1}):
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        reply = front.client.post(path, json=body)
        assert reply.status_code == 400
        assert "temperature" in reply.text


def test_a_server_that_is_killed_is_gone_round(front: Front) -> None:
    """A request that a router had sent to it fails with an error that says so, or is tried at the
    other, and the next ones are answered by that."""
    expected = completion(front.client)
    replies: list[httpx.Response] = []

    def ask() -> None:
        for _ in range(4):
            replies.append(front.client.post("/v1/completions", json=COMPLETION))

    engine, server = front.servers[1].engine_process(), front.servers[1].process
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    server.kill()
    engine.kill()
    server.wait()
    for thread in threads:
        thread.join()
    failed = [reply for reply in replies if reply.status_code != 200]
    assert all(reply.status_code in GATEWAY_ERRORS and reply.text for reply in failed)
    assert eventually(lambda: not [each for each in _statuses(front) if each != 200], BACK_WITHIN_S)
    assert [completion(front.client) for _ in range(6)] == [expected] * 6


def _statuses(front: Front) -> list[int]:
    posts = (front.client.post("/v1/completions", json=COMPLETION) for _ in range(6))
    return [reply.status_code for reply in posts]
