"""Priorities are handed on; deadlines end a request in words, before or after its work began."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from quire.engine.config import PriorityTargets, SchedulingConfig
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from tests.server.served import Served, plain_config, serving, with_model

STAGE = 'quire:deadline_exceeded_total{engine="0",model_name="test-model",stage='
FIELDS: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 200},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200},
}


def slow(_: object) -> Iterator[int]:
    while True:
        time.sleep(0.01)
        yield 100


@pytest.fixture(scope="module")
def by_priority() -> Iterator[Served]:
    plain = plain_config()
    engine = replace(
        plain.model.engine, scheduling=SchedulingConfig(scheduling_policy=PolicyName.PRIORITY)
    )
    with serving(with_model(plain, engine=engine)) as running:
        yield running


@pytest.mark.parametrize("path", FIELDS)
def test_a_priority_that_nobody_looks_at_is_refused(served: Served, path: str) -> None:
    refused = served.client.post(path, json=FIELDS[path] | {"priority": 3})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "priority"
    assert "--scheduling-policy priority" in refused.json()["error"]["message"]
    assert served.client.post(path, json=FIELDS[path] | {"priority": 0}).status_code == 200


@pytest.mark.parametrize("path", FIELDS)
def test_priority_and_time_reach_the_engine(by_priority: Served, path: str) -> None:
    served = by_priority
    served.engine.submitted.clear()
    served.client.post(path, json=FIELDS[path])
    served.client.post(path, json=FIELDS[path] | {"priority": -7, "deadline_ms": 60_000, "n": 2})
    plain, *hurried = served.engine.submitted
    assert (plain.priority, plain.time_limit_s) == (0, None)
    assert len(hurried) == 2
    for request in hurried:
        assert request.priority == -7
        assert request.time_limit_s is not None and 30 < request.time_limit_s < 60


@pytest.mark.parametrize("path", FIELDS)
def test_targets_are_those_of_the_request_else_of_its_key_else_of_the_server(
    path: str,
) -> None:
    plain = plain_config()
    engine = replace(plain.model.engine, scheduling=SchedulingConfig(target_ttft_ms=500.0))
    keys = (ApiKey("plain"), ApiKey("fast", target_itl_ms=20))
    with serving(replace(with_model(plain, engine=engine), api_keys=keys)) as served:
        asked: tuple[tuple[str, dict[str, object]], ...] = (
            ("plain", {}),
            ("fast", {}),
            ("fast", {"target_itl_ms": 35.5, "target_ttft_ms": 90}),
        )
        for key, fields in asked:
            headers = {"Authorization": f"Bearer {key}"}
            body = FIELDS[path] | fields
            assert served.client.post(path, json=body, headers=headers).status_code == 200
        found = [(each.target_ttft_s, each.target_itl_s) for each in served.engine.submitted]
    assert found == [(0.5, None), (0.5, 0.02), (0.09, 0.0355)]


@pytest.mark.parametrize("path", FIELDS)
def test_targets_of_a_priority_are_between_those_of_the_key_and_of_the_server(path: str) -> None:
    plain = plain_config()
    scheduling = SchedulingConfig(
        scheduling_policy=PolicyName.PRIORITY,
        target_ttft_ms=500.0,
        priority_targets=(PriorityTargets(0, itl_ms=40.0), PriorityTargets(2, 2000.0, 90.0)),
    )
    engine = replace(plain.model.engine, scheduling=scheduling)
    keys = (ApiKey("plain"), ApiKey("fast", target_itl_ms=20))
    with serving(replace(with_model(plain, engine=engine), api_keys=keys)) as served:
        asked: tuple[tuple[str, dict[str, object]], ...] = (
            ("plain", {}),
            ("plain", {"priority": 1}),
            ("plain", {"priority": 2}),
            ("fast", {"priority": 2}),
            ("fast", {"priority": 2, "target_ttft_ms": 90}),
        )
        for key, fields in asked:
            headers = {"Authorization": f"Bearer {key}"}
            body = FIELDS[path] | fields
            assert served.client.post(path, json=body, headers=headers).status_code == 200
        found = [(each.target_ttft_s, each.target_itl_s) for each in served.engine.submitted]
    assert found == [(0.5, 0.04), (0.5, None), (2.0, 0.09), (2.0, 0.02), (0.09, 0.02)]


def test_a_deadline_is_worth_another_try_where_waiting_helps(served: Served) -> None:
    served.engine.refuses, served.engine.wait_s = Reason.DEADLINE_HOPELESS, 3.2
    reply = served.complete(prompt="x", deadline_ms=5000)
    assert (reply.status_code, reply.headers["retry-after"]) == (504, "4")
    assert reply.headers["x-should-retry"] == "false", "not at once, within the deadline"


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_output_that_is_late_is_an_error(served: Served, path: str, stream: bool) -> None:
    before = served.metric(STAGE + '"unfinished"')
    served.engine.script = slow
    reply = served.client.post(path, json=FIELDS[path] | {"deadline_ms": 200, "stream": stream})
    if stream:
        assert reply.status_code == 200
        *_, last, done = [line for line in reply.text.splitlines() if line]
        assert done == "data: [DONE]"
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert reply.status_code == 504
        assert reply.headers["x-should-retry"] == "false"
        error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("deadline_exceeded", "deadline_ms")
    assert served.metric(STAGE + '"unfinished"') == before + 1
    assert served.engine.num_unfinished == 0


def test_a_late_choice_ends_the_others_and_all_are_counted(served: Served) -> None:
    before = served.metric(STAGE + '"unfinished"')
    served.engine.script = slow
    reply = served.complete(prompt="x", n=3, max_tokens=200, deadline_ms=200)
    assert reply.status_code == 504
    assert served.engine.num_unfinished == 0
    assert served.metric(STAGE + '"unfinished"') == before + 3


def test_a_hopeless_deadline_is_refused_before_any_work(served: Served) -> None:
    before = served.metric(STAGE + '"refused"')
    reply = served.complete(prompt="x", deadline_ms=0.0001)
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "deadline_exceeded"
    assert served.engine.submitted == []
    served.engine.refuses = Reason.DEADLINE_HOPELESS
    assert served.complete(prompt="x", deadline_ms=5000).status_code == 504
    assert served.metric(STAGE + '"refused"') == before + 2


def test_what_is_in_time_is_answered(served: Served) -> None:
    assert served.complete(prompt="x", deadline_ms=20_000.5).status_code == 200
