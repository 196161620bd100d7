"""Models that are loaded on first use and unloaded when idle: requests wait, and none is lost."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.server.config import ApiKey, LoadTime, ServedModelConfig, ServerConfig
from tests.server.apis.batches.batch_files import encode, line
from tests.server.models.several import (
    ONE,
    TWO,
    becomes,
    model_config,
    newest,
    serving_two,
    states,
    text_of,
    two_models,
)
from tests.server.scripted_engine import ScriptedEngine
from tests.server.served import BUNDLED, Served, eventually, plain_config, serving

HELD_S = 0.2
PAUSES_MS = st.sampled_from((0, 0, 5, 30))


@pytest.fixture
def two() -> Iterator[Served]:
    with serving_two(two_models()) as served:
        yield served


def hold_load(served: Served) -> ScriptedEngine:
    """Let the next load of the second model wait for the engine's `starts`."""
    engine = newest(served)
    served.do(engine.starts.clear)
    return engine


def ask(served: Served, replies: list[httpx.Response], **fields: object) -> threading.Thread:
    body = {"model": TWO, "prompt": "x", "max_tokens": 3, **fields}

    def run() -> None:
        replies.append(httpx.post(served.url + "/v1/completions", json=body, timeout=20))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def waiting(served: Served) -> float:
    return served.metric(f'quire:requests_waiting_for_load{{engine="0",model_name="{TWO}"}}')


def test_the_first_request_loads_the_model_and_waits(two: Served) -> None:
    assert two.client.get("/readyz").status_code == 200
    assert states(two)[TWO] == "unloaded"
    engine, replies = hold_load(two), list[httpx.Response]()
    threads = [ask(two, replies) for _ in range(3)]
    assert eventually(lambda: waiting(two) == 3)
    assert states(two)[TWO] == "loading"
    assert two.client.get("/readyz").status_code == 200
    assert two.complete(model=ONE, prompt="x", max_tokens=1).status_code == 200
    two.do(engine.starts.set)
    for thread in threads:
        thread.join(10)
    assert [each.json()["choices"][0]["text"] for each in replies] == [text_of(TWO, 3)] * 3
    cards = {card["id"]: card for card in two.client.get("/v1/models").json()["data"]}
    assert (cards[TWO]["max_model_len"], cards[TWO]["status"]) == (256, {"value": "loaded"})
    assert two.metric(f'quire:model_loads_total{{end="loaded",engine="0",model_name="{TWO}"}}') == 1


def test_a_deadline_counts_while_the_model_loads(two: Served) -> None:
    engine = hold_load(two)
    reply = two.complete(model=TWO, prompt="x", deadline_ms=100)
    assert (reply.status_code, reply.json()["error"]["param"]) == (504, "deadline_ms")
    assert waiting(two) == 0
    two.do(engine.starts.set)
    assert becomes(two, "loaded")


def test_who_goes_away_does_not_wait_any_more(two: Served) -> None:
    engine = hold_load(two)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(two.url + "/v1/completions", json={"model": TWO, "prompt": "x"}, timeout=HELD_S)
    assert eventually(lambda: waiting(two) == 0)
    two.do(engine.starts.set)
    assert becomes(two, "loaded")


def test_a_drain_ends_those_who_wait_for_a_load(two: Served) -> None:
    hold_load(two)
    replies: list[httpx.Response] = []
    thread = ask(two, replies)
    assert eventually(lambda: waiting(two) == 1)
    two.server.handle_exit(signal.SIGTERM, None)
    thread.join(10)
    assert (replies[0].status_code, replies[0].json()["error"]["code"]) == (503, "shutting_down")


def test_a_load_that_fails_is_told_and_tried_again(two: Served) -> None:
    engine = hold_load(two)
    replies: list[httpx.Response] = []
    thread = ask(two, replies)
    assert eventually(lambda: engine.phase == "loading")
    two.do(lambda: engine.die("too little memory"))
    thread.join(10)
    error = replies[0].json()["error"]
    assert (replies[0].status_code, error["code"]) == (503, "model_load_failed")
    assert "too little memory" in error["message"]
    ready = two.client.get("/readyz")
    assert (ready.status_code, ready.json()["models"]) == (503, {TWO: "down"})
    assert two.client.get("/livez").status_code == 200
    card = two.client.get(f"/v1/models/{TWO}").json()
    assert card["status"] == {"value": "failed", "reason": "too little memory"}
    assert eventually(lambda: two.client.get("/readyz").status_code == 200)
    assert states(two)[TWO] == "failed"
    assert two.complete(model=TWO, prompt="x", max_tokens=1).status_code == 200
    assert two.metric(f'quire:model_loads_total{{end="failed",engine="0",model_name="{TWO}"}}') == 1


def test_an_idle_model_is_unloaded_and_loaded_again_when_it_is_asked_for() -> None:
    with serving_two(two_models(unload_after_s=0.1)) as served:
        for loads in (1, 2):
            reply = served.complete(model=TWO, prompt="x", max_tokens=2)
            assert reply.json()["choices"][0]["text"] == text_of(TWO, 2)
            assert becomes(served, "unloaded")
            series = f'{{engine="0",model_name="{TWO}",reason="idle"}}'
            assert served.metric(f"quire:model_unloads_total{series}") == loads
            running = f'quire:num_requests_running{{engine="0",model_name="{TWO}"}}'
            assert served.metric(running) == 0
            assert served.metric(f'quire:kv_blocks{{engine="0",model_name="{TWO}"') == 0
        assert served.client.get("/readyz").status_code == 200
        assert served.client.get(f"/v1/models/{TWO}").json()["max_model_len"] == 256


def test_a_model_in_use_is_not_idle() -> None:
    with serving_two(two_models(unload_after_s=0.05)) as served:
        engine = newest(served)
        served.do(engine.may_step.clear)
        replies: list[httpx.Response] = []
        thread = ask(served, replies)
        assert eventually(lambda: engine.num_unfinished == 1)
        time.sleep(HELD_S)
        assert states(served)[TWO] == "loaded"
        served.do(engine.may_step.set)
        thread.join(10)
        assert replies[0].json()["choices"][0]["text"] == text_of(TWO, 3)
        assert becomes(served, "unloaded")


def test_subscribers_hear_that_the_cache_is_gone_with_the_engine() -> None:
    with serving_two(two_models(unload_after_s=0.05)) as served:
        with served.client.stream("GET", "/v1/kv_events", params={"model": TWO}) as events:
            lines = events.iter_lines()
            assert next(lines) == ": keep-alive"
            served.complete(model=TWO, prompt="x", max_tokens=1).raise_for_status()
            data = next(line for line in lines if line.startswith("data: "))
        assert json.loads(data.removeprefix("data: ")) == {"type": "AllBlocksCleared"}


def test_models_are_loaded_and_unloaded_by_hand(two: Served) -> None:
    def change(verb: str) -> dict[str, object]:
        answer: dict[str, object] = two.client.post(f"/v1/models/{TWO}/{verb}").json()
        return answer

    assert change("load") == {"id": TWO, "status": {"value": "loaded"}, "object": "model.status"}
    assert change("load")["status"] == {"value": "loaded"}
    assert change("unload")["status"] == {"value": "unloaded"}
    assert change("unload")["status"] == {"value": "unloaded"}
    assert two.client.post("/v1/models/three/load").status_code == 404
    assert two.complete(model=TWO, prompt="x", max_tokens=1).status_code == 200


def test_only_the_admin_key_loads_and_unloads() -> None:
    config = replace(two_models(), api_keys=(ApiKey("k"),), admin_key="boss")
    with serving_two(config) as served:
        for key, status in (("k", 403), ("boss", 200), ("", 401)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            reply = served.client.post(f"/v1/models/{TWO}/load", headers=headers)
            assert reply.status_code == status


def test_a_model_that_stays_in_use_is_not_unloaded() -> None:
    with serving_two(two_models(shutdown_timeout_s=0.1)) as served:
        engine, replies = newest(served), list[httpx.Response]()
        served.do(engine.may_step.clear)
        thread = ask(served, replies)
        assert eventually(lambda: engine.num_unfinished == 1)
        reply = served.client.post(f"/v1/models/{TWO}/unload")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "model_in_use")
        served.do(engine.may_step.set)
        thread.join(10)
        assert replies[0].status_code == 200 and states(served)[TWO] == "loaded"


def test_one_model_may_be_loaded_on_first_use_too() -> None:
    """Then it need not be named."""
    config = ServerConfig((model_config(ONE, load=LoadTime.ON_FIRST_USE),), port=0)
    with serving(config) as served:
        assert served.client.get("/readyz").json() == {"status": "ready"}
        assert served.client.get("/v1/loads").json()["models"][0]["status"] == "unloaded"
        assert served.complete(prompt="To be", max_tokens=2).status_code == 200
        assert states(served) == {ONE: "loaded"}


def test_a_model_that_cannot_be_read_keeps_no_other_from_its_work(tmp_path: Path) -> None:
    engine = replace(model_config(TWO).engine.model, model=str(tmp_path))
    broken = replace(model_config(TWO), engine=replace(model_config(TWO).engine, model=engine))
    for load in LoadTime:
        models: tuple[ServedModelConfig, ...] = (model_config(ONE), replace(broken, load=load))
        with serving(replace(plain_config(), models=models), loaded=False) as served:
            served.do(served.engine.starts.set)
            assert eventually(lambda: served.client.get("/startupz").status_code == 200)
            assert served.complete(model=ONE, prompt="x", max_tokens=1).status_code == 200
            reply = served.complete(model=TWO, prompt="x")
            assert reply.json()["error"]["code"] == "model_load_failed"
            assert served.client.get("/readyz").json()["models"] == {TWO: "down"}


def test_what_could_not_be_loaded_at_the_start_is_tried_again_unasked(tmp_path: Path) -> None:
    late = tmp_path / "late"
    engine = replace(model_config(TWO).engine.model, model=str(late))
    second = replace(model_config(TWO), engine=replace(model_config(TWO).engine, model=engine))
    config = replace(plain_config(), models=(model_config(ONE), second))
    with serving(config, loaded=False) as served:
        served.do(served.engine.starts.set)
        assert eventually(lambda: states(served) == {ONE: "loaded", TWO: "failed"})
        late.symlink_to(BUNDLED)
        assert becomes(served, "loaded")
        assert served.client.get("/readyz").status_code == 200


def test_lines_of_a_batch_go_to_the_models_that_they_name(tmp_path: Path) -> None:
    config = two_models(unload_after_s=0.1, batch_dir=str(tmp_path / "batches"))
    with serving_two(config) as served:
        lines = [line(str(n), model=(ONE, TWO)[n % 2], prompt="x", max_tokens=2) for n in range(12)]
        upload = served.client.post(
            "/v1/files", files={"file": ("in", encode(lines))}, data={"purpose": "batch"}
        )
        batch = served.client.post(
            "/v1/batches",
            json={
                "input_file_id": upload.json()["id"],
                "endpoint": "/v1/completions",
                "completion_window": "24h",
            },
        ).json()
        path = f"/v1/batches/{batch['id']}"
        assert eventually(lambda: served.client.get(path).json()["status"] == "completed", 20)
        answers = served.client.get(path).json()["output_file_id"]
        for raw in served.client.get(f"/v1/files/{answers}/content").text.splitlines():
            answer = json.loads(raw)
            text = answer["response"]["body"]["choices"][0]["text"]
            assert text == text_of((ONE, TWO)[int(answer["custom_id"]) % 2], 2)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from((ONE, TWO)), PAUSES_MS), max_size=40))
def test_whatever_is_asked_in_whatever_order_is_answered_by_its_model(
    asked: list[tuple[str, int]],
) -> None:
    """Pauses are about as long as an idle model stays loaded, so that many requests meet one that
    is being unloaded."""
    with serving_two(two_models(unload_after_s=0.02)) as served:

        def one(item: tuple[str, int]) -> tuple[str, httpx.Response]:
            model, pause_ms = item
            time.sleep(pause_ms / 1000)
            body = {"model": model, "prompt": "To be", "max_tokens": 3}
            return model, httpx.post(served.url + "/v1/completions", json=body, timeout=20)

        with ThreadPoolExecutor(6) as pool:
            for model, reply in pool.map(one, asked):
                assert reply.status_code == 200, reply.text
                assert reply.json()["choices"][0]["text"] == text_of(model, 3)


def test_who_was_let_in_is_served_although_the_model_is_to_be_unloaded(two: Served) -> None:
    """It is unloaded by hand in the moment in which the first request may use it."""
    model = two.server.service.models[1]
    ends: list[bool] = []

    async def unload() -> None:
        while not model.lifecycle.num_active:
            await asyncio.sleep(0)
        ends.append(await model.lifecycle.unload(10))

    for number in range(1, 6):
        engine, replies = hold_load(two), list[httpx.Response]()
        threads = [ask(two, replies) for _ in range(3)]
        assert eventually(lambda: waiting(two) == 3)
        unloading = two.do(lambda: asyncio.ensure_future(unload()))
        two.do(engine.starts.set)
        for thread in threads:
            thread.join(10)
        assert [each.status_code for each in replies] == [200] * 3
        assert eventually(unloading.done) and ends == [True] * number
        assert eventually(lambda: states(two)[TWO] in ("loaded", "unloaded"))
        two.client.post(f"/v1/models/{TWO}/unload").raise_for_status()


def test_a_response_in_the_background_holds_its_model() -> None:
    with serving_two(two_models(unload_after_s=0.05)) as served:
        engine = newest(served)
        served.do(engine.may_step.clear)
        body = {"model": TWO, "input": "x", "max_output_tokens": 2, "background": True}
        response = served.client.post("/v1/responses", json=body).raise_for_status().json()
        time.sleep(HELD_S)
        assert states(served)[TWO] == "loaded"
        served.do(engine.may_step.set)
        path = f"/v1/responses/{response['id']}"
        assert eventually(lambda: served.client.get(path).json()["status"] != "in_progress")
        assert becomes(served, "unloaded")
