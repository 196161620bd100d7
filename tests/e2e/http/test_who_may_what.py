"""Keys, their rates, the admin key, pages of other origins and compression, on one real server."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.server_process import MODEL, ServerProcess, server_process

ADMIN, PAGE = "key-of-the-house", "https://chat.example.com"
KEYS = "key-of-ann ann 2 rpm=3\nkey-of-bob bob tpm=200\nkey-of-cat cat\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    Path(keys).write_text(KEYS)
    flags = ("--api-key-file", str(keys), "--admin-key", ADMIN, "--allowed-origins", PAGE)
    with server_process(*flags) as running:
        yield running


def bearing(key: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **headers}


def test_a_client_is_told_its_rate_and_obeys(server: ServerProcess) -> None:
    ann = openai.OpenAI(base_url=f"{server.url}/v1", api_key="key-of-ann", max_retries=0)
    with ann:
        for left in ("2", "1", "0"):
            raw = ann.completions.with_raw_response.create(model=MODEL, prompt="x", max_tokens=1)
            assert raw.headers["x-ratelimit-remaining-requests"] == left
        with pytest.raises(openai.RateLimitError) as refused:
            ann.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 20


def test_outputs_put_a_key_in_debt(server: ServerProcess) -> None:
    said = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
    first = server.client.post("/v1/completions", json=said, headers=bearing("key-of-bob"))
    assert first.json()["usage"]["completion_tokens"] == 400
    second = server.client.post("/v1/completions", json=said, headers=bearing("key-of-bob"))
    assert second.status_code == 429
    assert second.headers["x-ratelimit-remaining-tokens"] == "0"
    assert int(second.headers["retry-after"]) > 50


def test_the_admin_key_opens_what_others_find_closed(server: ServerProcess) -> None:
    for method, path in (("GET", "/v1/server_info"), ("POST", "/reset_prefix_cache")):
        refused = server.client.request(method, path, headers=bearing("key-of-cat"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
        assert server.client.request(method, path, headers=bearing(ADMIN)).status_code == 200
    everyones = server.client.get("/v1/requests?all=true", headers=bearing(ADMIN)).json()["data"]
    assert {each["tenant"] for each in everyones} <= {"ann", "bob", "cat", "(admin)"}
    assert ADMIN not in server.log() and "key-of-ann" not in server.log()


def preflight(server: ServerProcess, origin: str) -> httpx.Response:
    return httpx.options(
        f"{server.url}/v1/chat/completions",
        headers={
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )


def test_pages_of_an_allowed_origin_may_call_and_read(server: ServerProcess) -> None:
    allowed = preflight(server, PAGE)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    foreign = preflight(server, "https://evil.example.com")
    assert "access-control-allow-origin" not in foreign.headers
    headers = bearing("key-of-cat", origin=PAGE)
    read = server.client.get("/v1/models", headers=headers)
    assert read.headers["access-control-allow-origin"] == PAGE
    assert "x-ratelimit-remaining-requests" in read.headers["access-control-expose-headers"]


def test_large_answers_come_compressed(server: ServerProcess) -> None:
    said = {"prompt": "Once upon a time " * 40, "max_tokens": 0, "echo": True, "logprobs": 3}
    headers = bearing("key-of-cat")
    small = server.client.post("/v1/completions", json=said, headers=headers)
    plain = server.client.post(
        "/v1/completions", json=said, headers=headers | {"accept-encoding": "identity"}
    )
    assert small.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert small.json()["choices"][0]["text"] == plain.json()["choices"][0]["text"]
    assert int(small.headers["content-length"]) * 2 < int(plain.headers["content-length"])
