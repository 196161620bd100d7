"""Stored responses: read, listed, gone on from, deleted; each by the key that asked for it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from quire.server.config import ApiKey
from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_tools import CALL, says
from tests.server.apis.responses.test_streaming import told
from tests.server.served import Served, eventually, plain_config, serving, with_model

RESPONSES = "/v1/responses"


def ask(served: Served, given: object = "Hello there", **fields: object) -> dict[str, Any]:
    asked = {"input": given, "max_output_tokens": 4, **fields}
    reply = served.client.post(RESPONSES, json=asked)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def prompt_of(served: Served) -> tuple[int, ...]:
    return tuple(served.engine.submitted[-1].prompt_token_ids)


def refused(reply: httpx.Response, status: int = 400) -> tuple[str | None, str]:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    return error["param"], error["code"]


def test_a_response_is_read_again_as_it_was(served: Served) -> None:
    body = ask(served, top_logprobs=1, instructions="Be brief.", metadata={"a": "b"})
    assert body["store"] is True
    assert served.client.get(f"{RESPONSES}/{body['id']}").json() == body


def test_a_streamed_response_is_there_once_its_end_is(served: Served) -> None:
    asked = {"input": "Hi", "max_output_tokens": 3, "stream": True}
    body = told(served.client.post(RESPONSES, json=asked))[-1]["response"]
    assert served.client.get(f"{RESPONSES}/{body['id']}").json() == body


def test_a_response_that_is_not_to_be_stored_is_not(served: Served) -> None:
    body = ask(served, store=False)
    assert body["store"] is False
    reply = served.client.get(f"{RESPONSES}/{body['id']}")
    assert refused(reply, 404) == (None, "response_not_found")


def test_a_deleted_response_is_gone(served: Served) -> None:
    first = ask(served)["id"]
    second = ask(served, previous_response_id=first)["id"]
    reply = served.client.delete(f"{RESPONSES}/{first}")
    assert reply.json() == {"id": first, "object": "response", "deleted": True}
    for action in (served.client.get, served.client.delete):
        assert refused(action(f"{RESPONSES}/{first}"), 404) == (None, "response_not_found")
    reply = served.client.post(RESPONSES, json={"input": "x", "previous_response_id": second})
    assert refused(reply) == ("previous_response_id", "previous_response_not_found")
    assert first in reply.json()["error"]["message"]


def test_what_was_said_before_comes_before_the_input(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(f"So.\n{CALL}", tokenizer)
    shared = {"tools": [{"type": "function", "name": "find"}], "max_output_tokens": 40}
    first = ask(served, "Find 7.", instructions="Never inherited.", **shared)
    assert [item["type"] for item in first["output"]] == ["message", "function_call"]
    call = first["output"][-1]
    shared["max_output_tokens"] = 10
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}
    served.engine.script = says("There.", tokenizer)
    second = ask(served, [result], previous_response_id=first["id"], **shared)
    assert second["previous_response_id"] == first["id"]
    third = {"role": "user", "content": "Sure?"}
    shared["max_output_tokens"] = 4
    ask(served, [third], previous_response_id=second["id"], instructions="Be sure.", **shared)
    chained = prompt_of(served)
    asked = {"role": "user", "content": "Find 7."}
    items = [asked, *first["output"], result, *second["output"], third]
    ask(served, items, instructions="Be sure.", store=False, **shared)
    assert prompt_of(served) == chained


def test_a_response_that_was_cut_within_its_reasoning_goes_on(tokenizer: TextTokenizer) -> None:
    with serving(with_model(plain_config(), reasoning_parser="deepseek_r1")) as served:
        served.engine.script = says("<think>Let me think of it for long", tokenizer)
        first = ask(served, max_output_tokens=8)
        assert [item["type"] for item in first["output"]] == ["reasoning"]
        more = {"role": "user", "content": "Go on"}
        ask(served, [more], previous_response_id=first["id"])
        continued = prompt_of(served)
        ask(served, [{"role": "user", "content": "Hello there"}, *first["output"], more])
        assert prompt_of(served) == continued


@pytest.mark.parametrize("num_chars", [5_000, 100_000])
def test_a_long_request_goes_on_too(served: Served, num_chars: int) -> None:
    """It is read in a thread, or in a process that has no store."""
    long = {"metadata": {"a": "x" * num_chars}}
    first = ask(served, "Hello", **long)
    ask(served, "More", previous_response_id=first["id"], **long)
    prompt = prompt_of(served)
    asked = {"role": "user", "content": "Hello"}
    ask(served, [asked, *first["output"], {"role": "user", "content": "More"}], store=False)
    assert prompt_of(served) == prompt
    reply = served.client.post(RESPONSES, json={"input": "x", "previous_response_id": "y", **long})
    assert refused(reply) == ("previous_response_id", "previous_response_not_found")


def test_items_are_named_by_their_ids(served: Served) -> None:
    first = ask(served, [{"role": "user", "content": "Hello"}])
    listed = served.client.get(f"{RESPONSES}/{first['id']}/input_items").json()["data"]
    names = [listed[0]["id"], first["output"][0]["id"]]
    named = [{"type": "item_reference", "id": name} for name in names]
    more = {"role": "user", "content": "More"}
    again = ask(served, [*named, more])
    prompt = prompt_of(served)
    ask(served, [more], previous_response_id=first["id"])
    assert prompt_of(served) == prompt
    items = served.client.get(f"{RESPONSES}/{again['id']}/input_items?order=asc").json()["data"]
    assert [each["content"][0]["text"] for each in items] == [
        "Hello",
        first["output"][0]["content"][0]["text"],
        "More",
    ]


@pytest.mark.parametrize("end", ["-9", "-in9", "-x", "", "-in"])
def test_an_item_that_is_not_there_is_an_error(served: Served, end: str) -> None:
    name = ask(served)["output"][0]["id"].removesuffix("-0") + end
    reply = served.client.post(RESPONSES, json={"input": [{"type": "item_reference", "id": name}]})
    assert refused(reply) == ("input[0].id", "item_not_found")


def test_a_fault_before_the_input_is_one_of_the_response_before(served: Served) -> None:
    first = ask(served, "word " * 150)["id"]
    fields = {"input": "word " * 150, "previous_response_id": first}
    reply = served.client.post(RESPONSES, json=fields)
    assert refused(reply) == ("input", "context_length_exceeded")


def test_the_items_of_an_input_are_listed_in_pages(served: Served) -> None:
    said = {"role": "assistant", "content": "Hi", "id": "msg_mine"}
    items = [{"role": "user", "content": f"{number}"} for number in range(4)]
    name = ask(served, [*items, said, {"role": "user", "content": "Go on"}])["id"]
    path, seen = f"{RESPONSES}/{name}/input_items", list[dict[str, Any]]()
    query: dict[str, str | int] = {"limit": 4, "order": "asc"}
    while True:
        page = served.client.get(path, params=query).json()
        seen += page["data"]
        assert (page["first_id"], page["last_id"]) == (
            page["data"][0]["id"],
            page["data"][-1]["id"],
        )
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert [each["content"][0]["text"] for each in seen] == ["0", "1", "2", "3", "Hi", "Go on"]
    assert [each["content"][0]["type"] for each in seen[3:5]] == ["input_text", "output_text"]
    assert seen[4]["id"] == "msg_mine"
    assert len({each["id"] for each in seen}) == 6
    newest = served.client.get(path).json()["data"]
    assert newest == seen[::-1]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("", "stream"),
        ("", "starting_after"),
        ("", "include"),
        ("", "colour"),
        ("/input_items", "limit"),
        ("/input_items", "order"),
        ("/input_items", "after"),
        ("/input_items", "include"),
    ],
)
def test_parameters_of_the_url_are_checked(served: Served, path: str, param: str) -> None:
    value = {"stream": "true", "limit": "101"}.get(param, "x")
    reply = served.client.get(f"{RESPONSES}/{ask(served)['id']}{path}", params={param: value})
    assert refused(reply)[0] == param


def test_what_include_does_not_change_is_reported(served: Served) -> None:
    name = ask(served)["id"]
    for key in ("include", "include[]"):
        query = {key: "reasoning.encrypted_content"}
        reply = served.client.get(f"{RESPONSES}/{name}", params=query)
        assert "include" in reply.headers["x-quire-warnings"]


@pytest.fixture(scope="module")
def two_keys() -> Iterator[Served]:
    keys = (ApiKey("key-a", "a"), ApiKey("key-b", "b"))
    config = replace(plain_config(), api_keys=keys, response_store_bytes=20_000)
    with serving(config) as served:
        served.client.headers["authorization"] = "Bearer key-a"
        yield served


def test_a_response_belongs_to_its_key(two_keys: Served) -> None:
    body = ask(two_keys)
    path, other = f"{RESPONSES}/{body['id']}", {"authorization": "Bearer key-b"}
    for method, target in [
        ("GET", path),
        ("DELETE", path),
        ("POST", f"{path}/cancel"),
        ("GET", f"{path}/input_items"),
    ]:
        unknown = two_keys.client.request(method, target.replace("resp-", "resp-x"), headers=other)
        foreign = two_keys.client.request(method, target, headers=other)
        assert refused(foreign, 404) == refused(unknown, 404) == (None, "response_not_found")
    item = {"type": "item_reference", "id": body["output"][0]["id"]}
    for asked, param in [
        ({"input": "x", "previous_response_id": body["id"]}, "previous_response_id"),
        ({"input": [item]}, "input[0].id"),
    ]:
        reply = two_keys.client.post(RESPONSES, json=asked, headers=other)
        assert refused(reply)[0] == param
        two_keys.client.post(RESPONSES, json=asked).raise_for_status()


def test_the_quota_of_a_key_pushes_out_what_is_not_asked_for(two_keys: Served) -> None:
    other = {"authorization": "Bearer key-b"}
    kept = two_keys.client.post(RESPONSES, json={"input": "x"}, headers=other).json()["id"]
    first, *names = [ask(two_keys)["id"] for _ in range(3)]
    for _ in range(20):
        assert two_keys.client.get(f"{RESPONSES}/{first}").status_code == 200
        names.append(ask(two_keys)["id"])
    statuses = [two_keys.client.get(f"{RESPONSES}/{each}").status_code for each in names]
    assert statuses == sorted(statuses, reverse=True)
    assert (statuses[0], statuses[-1]) == (404, 200)
    assert two_keys.client.get(f"{RESPONSES}/{kept}", headers=other).status_code == 200
    assert two_keys.metric("quire:stored_responses_evicted_total{") > 0
    assert 0 < two_keys.metric("quire:stored_response_bytes{") <= 40_000
    assert two_keys.metric("quire:stored_responses{") >= 2


def test_an_answer_beyond_the_quota_is_sent_and_not_kept(two_keys: Served) -> None:
    body = ask(two_keys, metadata={"a": "x" * 20_000})
    assert two_keys.client.get(f"{RESPONSES}/{body['id']}").status_code == 404


def test_a_response_expires() -> None:
    config = replace(plain_config(), response_store_ttl_s=0.2)
    with serving(config) as served:
        name = ask(served)["id"]
        assert served.client.get(f"{RESPONSES}/{name}").status_code == 200
        assert eventually(lambda: served.metric("quire:stored_responses{") == 0)
        assert served.client.get(f"{RESPONSES}/{name}").status_code == 404


def test_without_a_store_what_asks_for_one_is_refused() -> None:
    with serving(replace(plain_config(), response_store_bytes=0)) as served:
        assert ask(served)["store"] is False
        cases: list[tuple[dict[str, object], str]] = [
            ({"store": True}, "store"),
            ({"background": True}, "background"),
            ({"previous_response_id": "resp-1"}, "previous_response_id"),
            ({"input": [{"type": "item_reference", "id": "msg-1-0"}]}, "input"),
        ]
        for fields, param in cases:
            reply = served.client.post(RESPONSES, json={"input": "x", **fields})
            assert refused(reply) == (param, "unsupported_parameter")
        reply = served.client.get(f"{RESPONSES}/resp-1")
        assert "--response-store-bytes" in json.dumps(reply.json())


def test_a_history_has_no_more_items_than_an_input_may_have(served: Served) -> None:
    nothing = {"type": "reasoning", "summary": []}
    name = ask(served, [*[nothing] * 4095, {"role": "user", "content": "x"}])["id"]
    reply = served.client.post(RESPONSES, json={"input": "x", "previous_response_id": name})
    assert refused(reply, 413) == ("previous_response_id", "request_too_large")


def test_a_history_is_no_longer_than_a_body_may_be() -> None:
    with serving(replace(plain_config(), max_body_bytes=3000)) as served:
        name = ask(served, [{"role": "user", "content": "a", "id": "x" * 2000}])["id"]
        asked = {"input": "x", "previous_response_id": name, "metadata": {"a": "b" * 900}}
        reply = served.client.post(RESPONSES, json=asked)
        assert refused(reply, 413) == ("previous_response_id", "request_too_large")
