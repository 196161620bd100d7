"""Several models on one server: each request is answered by the model that it names, and a model
that fails takes no other with it."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from quire.server.config import LoadTime
from quire.server.generation.input_reader import MEDIUM_BYTES
from tests.server.models.several import (
    ONE,
    SAYS,
    TWO,
    model_config,
    newest,
    says,
    serving_two,
    states,
    text_of,
    two_models,
)
from tests.server.served import Served, eventually, plain_config


@pytest.fixture(scope="module")
def both() -> Iterator[Served]:
    with serving_two(two_models()) as served:
        assert served.complete(model=TWO, prompt="x", max_tokens=1).status_code == 200
        yield served


@pytest.mark.parametrize(("name", "model"), [(ONE, ONE), ("uno", ONE), (TWO, TWO), ("zwei", TWO)])
def test_a_request_is_answered_by_the_model_that_it_names(
    both: Served, name: str, model: str
) -> None:
    reply = both.complete(model=name, prompt="To be", max_tokens=3)
    assert reply.json()["model"] == name
    assert reply.json()["choices"][0]["text"] == text_of(model, 3)
    chat = both.chat(model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=3)
    assert chat.json()["choices"][0]["message"]["content"] == text_of(model, 3)
    for path, fields in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [300]})):
        assert both.client.post(path, json={"model": name, **fields}).status_code == 200


def test_a_long_body_names_its_model_too(both: Served) -> None:
    """Beyond a megabyte it is looked into in a process of its own."""
    long = b" " * (MEDIUM_BYTES + 1)
    body = b'{"prompt": "To be", "max_tokens": 2' + long + b', "model": "zwei"}'
    reply = both.client.post("/v1/completions", content=body)
    assert reply.json()["choices"][0]["text"] == text_of(TWO, 2)
    nameless = both.client.post("/v1/completions", content=b'{"prompt": "To be"' + long + b"}")
    assert nameless.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("model", "status", "told"),
    [
        (None, 400, "this server has one, uno, two, zwei"),
        ("three", 404, "this server has one, uno, two, zwei"),
        (5, 400, "'model' must be a string"),
    ],
)
def test_a_request_that_names_no_model_of_the_server_is_told_which_there_are(
    both: Served, model: object, status: int, told: str
) -> None:
    for reply in (
        both.complete(model=model, prompt="x"),
        both.chat(model=model, messages=[{"role": "user", "content": "Hi"}]),
        both.client.post("/tokenize", json={"model": model, "prompt": "x"}),
    ):
        assert reply.status_code == status
        assert (reply.json()["error"]["param"], told in reply.json()["error"]["message"]) == (
            "model",
            True,
        )
    assert both.complete(prompt="x").status_code == 400


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"model": "one"', b"[" * 2000])
def test_what_is_no_object_is_told_as_ever(both: Served, body: bytes) -> None:
    reply = both.client.post("/v1/completions", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


def test_each_model_has_its_own_series(both: Served) -> None:
    both.complete(model=ONE, prompt="x", max_tokens=1)
    for name in (ONE, TWO):
        started = f'quire:time_to_first_token_seconds_count{{engine="0",model_name="{name}"}}'
        assert both.metric(started) >= 1
        loaded = f'quire:model_state{{engine="0",model_name="{name}",state="loaded"}}'
        assert both.metric(loaded) == 1
    assert both.metric('quire:event_loop_lag_seconds_count{engine="0",model_name="one"}') > 0
    lines = both.client.get("/metrics").text.splitlines()
    assert not [line for line in lines if line.startswith("quire:event_loop_lag") and TWO in line]
    assert len(lines) == len(set(lines))


def test_loads_and_facts_are_told_of_each_model(both: Served) -> None:
    loads = both.client.get("/v1/loads").json()
    assert [(each["model"], each["status"]) for each in loads["models"]] == [
        (ONE, "loaded"),
        (TWO, "loaded"),
    ]
    assert loads["max_num_seqs"] == sum(each["max_num_seqs"] for each in loads["models"])
    info = both.client.get("/v1/server_info").json()
    assert [each["name"] for each in info["models"]] == [ONE, TWO]
    assert info["models"][1]["facts"]["max_model_len"] == 256
    assert info["models"][1]["config"]["load"] == LoadTime.ON_FIRST_USE


def test_caches_are_emptied_by_name_or_all(both: Served) -> None:
    first, second = both.engines[0], newest(both)
    before = first.num_resets, second.num_resets
    assert both.client.post("/reset_prefix_cache", json={"model": "zwei"}).status_code == 200
    assert (first.num_resets, second.num_resets) == (before[0], before[1] + 1)
    both.client.post("/reset_prefix_cache").raise_for_status()
    assert (first.num_resets, second.num_resets) == (before[0] + 1, before[1] + 2)
    assert both.client.post("/reset_prefix_cache", json={"model": "x"}).status_code == 404


def test_events_of_the_cache_are_those_of_one_model(both: Served) -> None:
    assert both.client.get("/v1/kv_events").json()["error"]["param"] == "model"
    assert both.client.get("/v1/kv_events", params={"model": "x"}).status_code == 404
    with both.client.stream("GET", "/v1/kv_events", params={"model": TWO}) as reply:
        assert reply.status_code == 200


def test_a_running_request_is_cancelled_in_its_own_engine(both: Served) -> None:
    engine = newest(both)
    both.do(engine.may_step.clear)
    replies: list[httpx.Response] = []
    body = {"model": TWO, "prompt": "x", "max_tokens": 9}

    def ask() -> None:
        headers = {"x-request-id": "mine"}
        replies.append(httpx.post(both.url + "/v1/completions", json=body, headers=headers))

    thread = threading.Thread(target=ask)
    thread.start()
    assert eventually(lambda: engine.num_unfinished == 1)
    assert both.client.get("/v1/requests/mine").json()["model"] == TWO
    both.client.post("/v1/requests/mine/cancel").raise_for_status()
    thread.join(10)
    both.do(engine.may_step.set)
    assert replies[0].json()["choices"][0]["finish_reason"] == "abort"


def test_an_engine_that_dies_takes_only_its_own_requests_with_it() -> None:
    with serving_two(two_models()) as served:
        served.complete(model=TWO, prompt="x", max_tokens=1).raise_for_status()
        first, second = served.engines[0], newest(served)
        second.script = says(SAYS[TWO])
        for engine in (first, second):
            served.do(engine.may_step.clear)
        events: dict[str, list[str]] = {ONE: [], TWO: []}

        def stream(model: str) -> None:
            body = {"model": model, "prompt": "x", "max_tokens": 5, "stream": True}
            with httpx.stream("POST", served.url + "/v1/completions", json=body) as reply:
                events[model].extend(line for line in reply.iter_lines() if line)

        threads = [threading.Thread(target=stream, args=(model,)) for model in events]
        for thread in threads:
            thread.start()
        assert eventually(lambda: first.num_unfinished == second.num_unfinished == 1)
        served.do(lambda: second.die("killed"))
        served.do(first.may_step.set)
        for thread in threads:
            thread.join(10)
        assert events[ONE][-1] == "data: [DONE]" and "killed" in "".join(events[TWO])
        for path in ("/readyz", "/livez"):
            reply = served.client.get(path)
            assert reply.status_code == 503 and list(reply.json()["models"]) == [TWO]
        assert served.complete(model=ONE, prompt="x", max_tokens=1).status_code == 200
        reply = served.complete(model=TWO, prompt="x", max_tokens=1)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_down")
        assert states(served) == {ONE: "loaded", "uno": "loaded", TWO: "failed", "zwei": "failed"}


def test_a_stuck_engine_is_named() -> None:
    with serving_two(two_models(stuck_after_s=1.0)) as served:
        served.engines[0].progress_age_s = 2.0
        reply = served.client.get("/readyz")
        assert (reply.status_code, reply.json()) == (
            503,
            {"status": "stuck", "models": {ONE: "stuck"}},
        )
        assert served.client.get("/livez").status_code == 200


def test_a_server_is_ready_when_all_that_load_at_the_start_are() -> None:
    config = replace(plain_config(), models=(model_config(ONE), model_config(TWO)))
    with serving_two(config) as served:
        assert served.client.get("/startupz").status_code == 200
        assert set(states(served).values()) == {"loaded"}


def test_a_drain_ends_both() -> None:
    with serving_two(two_models()) as served:
        served.complete(model=TWO, prompt="x", max_tokens=1).raise_for_status()
        served.server.handle_exit(signal.SIGTERM, None)
        assert eventually(lambda: newest(served).phase == "down")
