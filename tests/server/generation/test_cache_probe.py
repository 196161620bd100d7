"""`POST /v1/cache/probe`: which tokens the engine is asked about, for whom, and what is told."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from quire.cache.prefix_miss import MissKind, PrefixMiss
from quire.cache.states.state_pool import StateTier
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from tests.server.served import MODEL, Served, plain_config, serving

ANN = ApiKey("key-of-ann", "ann")
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
SALTED = PrefixProbe(16, 16, PrefixMiss(MissKind.SALT, 5))


def probe(served: Served, **body: object) -> httpx.Response:
    return served.client.post("/v1/cache/probe", json=body)


@pytest.mark.parametrize("body", [{"prompt": "once upon a time"}, {"prompt": [5, 6, 7]}, CHAT])
def test_the_engine_is_asked_about_the_tokens_of_such_a_request(
    served: Served, body: dict[str, object]
) -> None:
    miss = PrefixMiss(MissKind.DIFFERS, 40)
    served.engine.probe_answer = PrefixProbe(32, 16, miss, StateTier.HOST)
    served.engine.probed.clear()
    told = probe(served, **body).json()
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    served.client.post(path, json={**body, "max_tokens": 1}).raise_for_status()
    (request,) = served.engine.submitted
    assert served.engine.probed == [(request.prompt_token_ids, request.sharing)]
    assert told == {
        "model": MODEL,
        "prompt_tokens": len(request.prompt_token_ids),
        "cached_tokens": 32,
        "device_tokens": 16,
        "miss": {"reason": "differs", "token": 40},
        "state": "host",
        "object": "cache.probe",
    }


def test_nothing_runs(served: Served) -> None:
    served.engine.probe_answer = PrefixProbe(0, 0, None)
    assert probe(served, prompt="x", max_tokens=5, n=3).json()["miss"] is None
    assert served.engine.submitted == []


def test_what_is_no_request_is_refused(served: Served) -> None:
    for body, param in (
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "x", "max_token": 1}, "max_token"),
        ({"messages": []}, "messages"),
        ({}, "prompt"),
        ({"prompt": [5] * 300}, "prompt"),
        ({"prompt": "x", "model": "none"}, "model"),
    ):
        reply = probe(served, **body)
        assert reply.status_code in (400, 404)
        assert reply.json()["error"]["param"] == param


def test_an_engine_that_cannot_be_asked_says_so(served: Served) -> None:
    served.engine.refuses = Reason.QUEUE_FULL
    reply = probe(served, prompt="x")
    assert (reply.status_code, "retry-after" in reply.headers) == (503, True)


@pytest.fixture
def guarded() -> Iterator[Served]:
    with serving(replace(plain_config(), api_keys=(ANN,))) as served:
        yield served


def test_tenants_learn_nothing_of_each_other(guarded: Served, served: Served) -> None:
    headers = {"authorization": f"Bearer {ANN.key}"}
    for each, told in (
        (guarded, {"reason": "new", "token": 16}),
        (served, {"reason": "salt", "token": 5}),
    ):
        each.engine.probe_answer = SALTED
        each.engine.probed.clear()
        reply = each.client.post(
            "/v1/cache/probe", json={"prompt": "x", "cache_salt": "mine"}, headers=headers
        )
        assert reply.json()["miss"] == told
    (_, own), (_, everyones) = guarded.engine.probed[0], served.engine.probed[0]
    assert own.salt != everyones.salt and everyones.salt == b"mine"
