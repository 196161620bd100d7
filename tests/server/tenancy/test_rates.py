"""Rates of API keys over HTTP: who is refused, for how long, and what every client is told."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from quire.server.tenancy.rates import RATE_HEADERS, RateLimited, as_duration, build_rates
from tests.server.served import MODEL, Served, plain_config, serving

LIMITED = 'quire:rate_limited_total{model_name="test-model",reason='
PER_MINUTE = 60


@pytest.fixture
def limited() -> Iterator[Served]:
    keys = (
        ApiKey("slow", "slow", requests_per_minute=PER_MINUTE),
        ApiKey("short", "short", tokens_per_minute=600),
        ApiKey("free", "free"),
    )
    with serving(replace(plain_config(), api_keys=keys)) as served:
        yield served


def complete(served: Served, key: str, **fields: object) -> httpx.Response:
    said = {"prompt": "x", "max_tokens": 1} | fields
    headers = {"authorization": f"Bearer {key}"}
    return served.client.post("/v1/completions", json=said, headers=headers)


def test_requests_beyond_the_rate_are_refused_until_the_time_that_is_said(limited: Served) -> None:
    began = time.monotonic()
    replies = [complete(limited, "slow")]
    while replies[-1].status_code == 200 and len(replies) < 2 * PER_MINUTE:
        replies.append(complete(limited, "slow"))
    took_s = time.monotonic() - began
    *taken, refused = replies
    assert PER_MINUTE <= len(taken) <= PER_MINUTE + took_s + 1
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "60 requests a minute" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert complete(limited, "free").status_code == 200
    assert limited.metric(LIMITED + '"requests"') == 1
    time.sleep(int(refused.headers["retry-after"]))
    assert complete(limited, "slow").status_code == 200


def test_refused_requests_are_not_read(limited: Served) -> None:
    while complete(limited, "slow").status_code == 200:
        pass
    headers = {"authorization": "Bearer slow"}
    reply = limited.client.post("/v1/completions", content=b"{", headers=headers)
    assert reply.status_code == 429


def test_prompts_and_outputs_are_charged(limited: Served) -> None:
    reply = complete(limited, "short", prompt=[5] * 100, max_tokens=50, ignore_eos=True)
    assert reply.json()["usage"]["total_tokens"] == 150
    first = complete(limited, "short", prompt=[5], max_tokens=1)
    left = int(first.headers["x-ratelimit-remaining-tokens"])
    assert 600 - 152 <= left <= 600 - 140
    for _ in range(20):
        reply = complete(limited, "short", prompt=[5] * 50, max_tokens=1)
        if reply.status_code == 429:
            break
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert limited.metric(LIMITED + '"tokens"') == 1
    wait_s = int(reply.headers["retry-after"])
    assert 1 <= wait_s <= 6
    time.sleep(wait_s)
    assert complete(limited, "short", prompt=[5] * 50, max_tokens=1).status_code == 200


def test_what_was_generated_beyond_the_rate_holds_the_next_prompt_back(limited: Served) -> None:
    said = {"prompt": [5] * 10, "n": 16, "max_tokens": 50, "ignore_eos": True}
    assert complete(limited, "short", **said).status_code == 200
    reply = complete(limited, "short", prompt=[5], max_tokens=1)
    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) > 10
    assert reply.headers["x-ratelimit-remaining-tokens"] == "0"


def test_a_prompt_that_is_always_too_long_is_not_asked_to_come_again() -> None:
    keys = (ApiKey("tiny", tokens_per_minute=10),)
    with serving(replace(plain_config(), api_keys=keys)) as served:
        reply = complete(served, "tiny", prompt=[5] * 11)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (
            400,
            "prompt_exceeds_rate",
            "prompt",
        )
        assert "11 tokens" in error["message"] and "10 a minute" in error["message"]
        assert complete(served, "tiny", prompt=[5] * 9, max_tokens=1).status_code == 200


def test_a_prompt_that_the_engine_refuses_costs_no_tokens(limited: Served) -> None:
    limited.engine.refuses = Reason.QUEUE_FULL
    reply = complete(limited, "short", prompt=[5] * 100)
    assert reply.status_code == 503
    limited.engine.refuses = None
    after = complete(limited, "short", prompt=[5], max_tokens=1)
    assert int(after.headers["x-ratelimit-remaining-tokens"]) >= 590


def test_headers_tell_the_rates_of_a_key(limited: Served) -> None:
    slow, short, free = (complete(limited, key) for key in ("slow", "short", "free"))
    assert slow.headers["x-ratelimit-limit-requests"] == "60"
    assert slow.headers["x-ratelimit-remaining-requests"] == "59"
    assert re.fullmatch(r"[0-9]+ms|1s", slow.headers["x-ratelimit-reset-requests"])
    assert short.headers["x-ratelimit-limit-tokens"] == "600"
    assert "x-ratelimit-limit-tokens" not in slow.headers
    assert not set(RATE_HEADERS) & set(free.headers)
    assert "x-ratelimit-remaining-requests" in complete(limited, "slow", n="bad").headers


def test_other_routes_are_not_limited(limited: Served) -> None:
    while complete(limited, "slow").status_code == 200:
        pass
    headers = {"authorization": "Bearer slow"}
    for path in ("/v1/models", "/v1/requests", "/v1/loads"):
        assert limited.client.get(path, headers=headers).status_code == 200
    reply = limited.client.post("/tokenize", json={"prompt": "x"}, headers=headers)
    assert reply.status_code == 429


@given(num_ns=st.integers(0, 10**13))
def test_durations_are_never_too_short(num_ns: int) -> None:
    shown = as_duration(num_ns)
    found = re.fullmatch(r"(?:([0-9]+)m)?([0-9.]+)s|([0-9]+)ms", shown)
    assert found is not None, shown
    minutes, seconds, millis = found.groups()
    if millis is None:
        millis = round(1000 * (60 * int(minutes or 0) + float(seconds)))
    assert 0 <= int(millis) * 10**6 - num_ns < 10**6


def test_after_a_refusal_for_tokens_both_rates_let_the_request_in() -> None:
    rates = build_rates(1, 60)
    assert rates is not None
    rates.admit_request(0.0)
    rates.admit_prompt(0.0, 60, "prompt")
    rates.admit_request(60.0)
    with pytest.raises(RateLimited) as refused:
        rates.charge_output(60.0, 1)
        rates.admit_prompt(60.0, 60, "prompt")
    again_s = 60.0 + (refused.value.retry_after_s or 0)
    rates.admit_request(again_s)
    rates.admit_prompt(again_s, 60, "prompt")


CHAT = {"messages": [{"role": "user", "content": "one two three"}]}
BODIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/completions", {"prompt": "one two three", "max_tokens": 1}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 1}),
    ("/v1/responses", {"input": "one two three", "max_output_tokens": 1}),
    ("/v1/messages", {**CHAT, "max_tokens": 1}),
    ("/v1/embeddings", {"input": "one two three"}),
)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_every_api_is_charged_for_prompts_and_requests(path: str, body: dict[str, object]) -> None:
    key = ApiKey("key", requests_per_minute=2, tokens_per_minute=300)
    with serving(replace(plain_config(), api_keys=(key,))) as served:
        said = {"model": MODEL, **body}
        headers = {"authorization": "Bearer key", "anthropic-version": "2023-06-01"}
        replies = [served.client.post(path, json=said, headers=headers) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert int(replies[1].headers["x-ratelimit-remaining-tokens"]) < 300 - 3
    assert "retry-after" in replies[2].headers
    assert "error" in replies[2].json()
