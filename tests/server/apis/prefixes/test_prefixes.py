"""`/v1/prefixes`: what the engine is asked to pin, for whom, and what is told of it."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from quire.server.models import model_prefixes
from tests.server.apis.prefixes.asking import LONG, MESSAGES, headers_of, listed, pin, shown
from tests.server.scripted_engine import BLOCK_SIZE, NUM_BLOCKS
from tests.server.served import (
    BUNDLED,
    MODEL,
    Served,
    eventually,
    plain_config,
    serving,
    with_model,
)

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
ANN, BOB = ApiKey("key-of-ann", "ann"), ApiKey("key-of-bob", "bob")
ADMIN = "key-of-admin"


@pytest.mark.parametrize("body", [{"prompt": LONG}, {"prompt": list(range(5, 50))}])
def test_the_full_blocks_of_a_prompt_are_pinned(served: Served, body: dict[str, object]) -> None:
    told = pin(served, **body, name="king").raise_for_status().json()
    served.complete(**body, max_tokens=1).raise_for_status()
    pinning, completion = served.engine.submitted
    num_tokens = len(completion.prompt_token_ids)
    num_full = num_tokens // BLOCK_SIZE
    assert pinning.prompt_token_ids == completion.prompt_token_ids[: num_full * BLOCK_SIZE]
    assert (pinning.sharing, pinning.stopping.max_tokens) == (completion.sharing, 0)
    assert pinning.pins_prompt and not completion.pins_prompt
    assert told.pop("id").startswith("prefix-")
    assert abs(told.pop("created_at") - time.time()) < 60
    assert told == {
        "object": "prefix",
        "expires_at": None,
        "model": MODEL,
        "name": "king",
        "state": "pinned",
        "why": None,
        "num_tokens": num_tokens,
        "num_pinned_tokens": num_full * BLOCK_SIZE,
        "num_blocks": num_full,
    }


def test_a_conversation_that_goes_on_from_a_pinned_one_begins_with_it(served: Served) -> None:
    told = pin(served, messages=MESSAGES).raise_for_status().json()
    served.chat(
        messages=[*MESSAGES, {"role": "user", "content": "Go on."}], max_tokens=1
    ).raise_for_status()
    pinning, chat = served.engine.submitted
    assert chat.prompt_token_ids[: told["num_pinned_tokens"]] == pinning.prompt_token_ids
    assert told["num_tokens"] - told["num_pinned_tokens"] < BLOCK_SIZE


def test_it_is_found_and_deleted_by_its_id(served: Served) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    assert shown(served, told["id"]) == told
    assert listed(served) == [told]
    assert served.metric('quire:pinned_prefixes{engine="0",model_name="test-model",state="pinned"')
    assert len(served.engine.pinned) == 1
    deleted = served.client.delete(f"/v1/prefixes/{told['id']}").raise_for_status().json()
    assert deleted == {"id": told["id"], "deleted": True, "object": "prefix.deleted"}
    assert served.engine.pinned == [] and listed(served) == []
    for reply in (
        served.client.get(f"/v1/prefixes/{told['id']}"),
        served.client.delete(f"/v1/prefixes/{told['id']}"),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "prefix_not_found")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"prompt": "x"}, "prompt", "prefix_too_short"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "prefix_too_short"),
        ({"prompt": [LONG, LONG]}, "prompt", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": [5, -1]}, "prompt[1]", "invalid_value"),
        ({"prompt": [5, 10**6]}, "prompt[1]", "invalid_value"),
        ({"prompt": [5] * 300}, "prompt", "context_length_exceeded"),
        ({"prompt": LONG, "messages": MESSAGES}, "prompt", "invalid_value"),
        ({"prompt": LONG, "max_tokens": 3}, "max_tokens", "unknown_parameter"),
        ({"prompt": LONG, "ttl_s": 0}, "ttl_s", "invalid_value"),
        ({"prompt": LONG, "name": ""}, "name", "invalid_value"),
        ({"prompt": LONG, "model": "none"}, "model", "model_not_found"),
        ({"prompt": LONG, "priority": 3}, "priority", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": MESSAGES, "chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs.tools",
            "invalid_value",
        ),
        ({"messages": MESSAGES, "tools": [TOOL, TOOL]}, "tools[1].function.name", "invalid_value"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({}, "prompt", "missing_required_parameter"),
    ],
)
def test_what_is_no_prefix_is_refused_by_the_field(
    served: Served, body: dict[str, object], param: str, code: str
) -> None:
    reply = pin(served, **body)
    assert reply.status_code in (400, 404)
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert served.engine.submitted == [] and listed(served) == []


@pytest.mark.parametrize("reason", [Reason.PINS_FULL, Reason.NEVER_FITS, Reason.QUEUE_FULL])
def test_what_the_engine_refuses_is_not_kept(served: Served, reason: Reason) -> None:
    served.engine.refuses = reason
    reply = pin(served, prompt=LONG)
    assert reply.status_code == (503 if reason is Reason.QUEUE_FULL else 400)
    code = "server_overloaded" if reason is Reason.QUEUE_FULL else str(reason)
    assert reply.json()["error"]["code"] == code
    assert listed(served) == []


def test_what_others_were_pinned_in_place_of_is_told(served: Served) -> None:
    served.engine.pins = Reason.NOT_PINNED
    reply = pin(served, prompt=LONG)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_pinned")
    assert "KV blocks too many" in reply.json()["error"]["message"]
    assert listed(served) == []


def test_it_is_pinned_for_so_many_seconds(served: Served) -> None:
    told = pin(served, prompt=LONG, ttl_s=0.5).raise_for_status().json()
    assert told["expires_at"] == told["created_at"] + 1
    assert listed(served) == [told]
    assert eventually(lambda: listed(served) == [])
    assert served.engine.pinned == []


def test_while_it_is_computed_it_can_be_seen_and_deleted(served: Served) -> None:
    served.engine.may_step.clear()
    replies: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: replies.append(pin(served, prompt=LONG)))
    asking.start()
    assert eventually(lambda: [each["state"] for each in listed(served)] == ["computing"])
    (told,) = listed(served)
    assert (told["num_blocks"], told["num_pinned_tokens"]) == (0, 0)
    served.client.delete(f"/v1/prefixes/{told['id']}").raise_for_status()
    asking.join(10)
    assert (replies[0].status_code, replies[0].json()["error"]["code"]) == (409, "prefix_deleted")
    assert len(served.engine.aborted) == 1 and listed(served) == []


def test_a_client_that_goes_leaves_nothing_pinned(served: Served) -> None:
    served.engine.may_step.clear()
    with pytest.raises(httpx.ReadTimeout):
        served.client.post("/v1/prefixes", json={"prompt": LONG}, timeout=0.3)
    assert eventually(lambda: listed(served) == [])
    assert len(served.engine.aborted) == 1
    served.engine.may_step.set()
    assert served.engine.pinned == []


def test_a_prefix_is_one_request_of_the_metrics_and_timelines(fresh: Served) -> None:
    told = pin(fresh, prompt=LONG).raise_for_status().json()
    timeline = fresh.client.get(f"/v1/requests/{told['id']}").raise_for_status().json()
    (choice,) = timeline["choices"]
    (event,) = [each for each in choice["events"] if each["event"] == "pinned"]
    assert (event["number"], event["meaning"]) == (told["num_blocks"], "blocks")
    assert fresh.metric('quire:request_success_total{engine="0"') == 1
    assert fresh.metric("quire:e2e_request_latency_seconds_sum") > 0
    assert fresh.metric("quire:time_to_first_token_seconds_count") == 0
    assert fresh.metric("quire:request_params_n_count") == 0


@pytest.fixture
def guarded() -> Iterator[Served]:
    with serving(replace(plain_config(), api_keys=(ANN, BOB), admin_key=ADMIN)) as served:
        yield served


def test_a_pin_belongs_to_the_key_that_made_it(guarded: Served) -> None:
    told = pin(guarded, ANN.key, prompt=LONG).raise_for_status().json()
    name = told["id"]
    assert listed(guarded, ANN.key) == [told] and listed(guarded, BOB.key) == []
    for method in ("GET", "DELETE"):
        reply = guarded.client.request(method, f"/v1/prefixes/{name}", headers=headers_of(BOB.key))
        assert reply.status_code == 404
    assert (
        guarded.client.get("/v1/prefixes?all=true", headers=headers_of(ANN.key)).status_code == 403
    )
    assert listed(guarded, ADMIN) == []
    assert listed(guarded, ADMIN, "?all=true") == [{**told, "tenant": "ann"}]
    assert shown(guarded, name, ADMIN) == told
    guarded.client.delete(f"/v1/prefixes/{name}", headers=headers_of(ADMIN)).raise_for_status()
    assert guarded.engine.pinned == []


def test_its_blocks_are_shared_by_the_terms_of_the_key(guarded: Served) -> None:
    for key in (ANN.key, BOB.key):
        pin(guarded, key, prompt=LONG).raise_for_status()
        pin(guarded, key, prompt=LONG, cache_salt="own").raise_for_status()
    assert len({each.sharing.salt for each in guarded.engine.submitted}) == 4
    assert {each.tenant for each in guarded.engine.submitted} == {"ann", "bob"}


def test_their_number_is_bounded(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_prefixes, "MAX_PER_TENANT", 2)
    monkeypatch.setattr(model_prefixes, "MAX_PREFIXES", 3)
    for _ in range(2):
        pin(guarded, ANN.key, prompt=LONG).raise_for_status()
    third = pin(guarded, ANN.key, prompt=LONG).json()["error"]
    assert third["code"] == "too_many_prefixes"
    assert third["message"].startswith("2 prefixes of yours are pinned, the most of a model")
    pin(guarded, BOB.key, prompt=LONG).raise_for_status()
    fourth = pin(guarded, BOB.key, prompt=LONG).json()["error"]
    assert fourth["message"].startswith("3 prefixes are pinned, the most of a model")
    assert len(guarded.engine.submitted) == 3


def test_what_the_server_keeps_of_them_is_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    monkeypatch.setattr(model_prefixes, "MAX_TOKENS", 2 * told["num_pinned_tokens"] - 1)
    refused = pin(served, prompt=LONG).json()["error"]
    assert refused["code"] == "too_many_prefixes"
    assert str(2 * told["num_pinned_tokens"]) in refused["message"]
    served.client.delete(f"/v1/prefixes/{told['id']}").raise_for_status()
    pin(served, prompt=LONG).raise_for_status()


def test_what_is_refused_costs_the_rate_of_a_key_no_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_prefixes, "MAX_PER_TENANT", 1)
    key = replace(ANN, tokens_per_minute=100)
    with serving(replace(plain_config(), api_keys=(key,))) as served:
        prompt = list(range(10, 50))
        for code in (None, "too_many_prefixes", "too_many_prefixes", "too_many_prefixes"):
            reply = pin(served, key.key, prompt=prompt)
            assert reply.json().get("error", {}).get("code") == code
        reply = pin(served, key.key, prompt=list(range(10, 90)))
        assert reply.status_code == 429, "the first took 40 of 100"


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(ModelConfig(BUNDLED), MemoryConfig(enable_prefix_caching=False)),
        EngineConfig(ModelConfig(BUNDLED), scheduling=SchedulingConfig(max_pinned_share=0.0)),
    ],
)
def test_a_server_that_pins_nothing_says_so(config: EngineConfig) -> None:
    with serving(with_model(plain_config(), engine=config)) as served:
        reply = pin(served, prompt=LONG)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "pins_off")
        assert served.engine.submitted == []


def test_a_prefix_of_a_body_that_a_worker_reads_is_pinned(served: Served) -> None:
    padded = [{"role": "system", "content": LONG, "name": "n"}]
    kwargs = {"unread": "x" * 100_000}
    reply = pin(served, messages=padded, chat_template_kwargs=kwargs).raise_for_status()
    assert "unread" in reply.headers["x-quire-warnings"]
    assert reply.json()["state"] == "pinned"
    assert reply.json()["num_blocks"] < NUM_BLOCKS
