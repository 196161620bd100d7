"""Streamed responses: typed events that end with what the whole response would be."""

import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import httpx
import openai
import pytest

from quire.scheduler.request import NewRequest
from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_streaming import events
from tests.server.apis.openai.test_tools import CALL, says
from tests.server.served import MODEL, Served, eventually, hold_after_first_token

RESPONSES = "/v1/responses"
TOOLS = [{"type": "function", "name": "find", "parameters": {"type": "object"}}]
ASKED = {"input": "Hello there", "max_output_tokens": 8}


def told(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; each is named as its type says."""
    blocks = [each.partition("\n") for each in events(reply)]
    bodies = [json.loads(data.removeprefix("data: ")) for _, _, data in blocks]
    assert [head for head, _, _ in blocks] == [f"event: {body['type']}" for body in bodies]
    assert [body["sequence_number"] for body in bodies] == [*range(len(bodies))]
    return bodies


def settled(text: str, response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one request to the next."""
    suffix = response["id"].removeprefix("resp")
    body: dict[str, Any] = json.loads(json.dumps(response).replace(suffix, text))
    body["usage"]["input_tokens_details"] = body["created_at"] = None
    for item in body["output"]:
        item.pop("call_id", None)
    return body


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("Hello there, all of you", {}),
        ("Hello there, all of you", {"top_logprobs": 2, "temperature": 0}),
        (f"Let me see.\n{CALL}\n{CALL}", {"tools": TOOLS, "max_output_tokens": 80}),
        (f"{CALL} and so on", {"tools": TOOLS, "max_output_tokens": 80, "top_logprobs": 1}),
        ("", {}),
    ],
    ids=str,
)
def test_a_stream_ends_with_the_whole_response(
    served: Served, tokenizer: TextTokenizer, said: str, fields: dict[str, object]
) -> None:
    served.engine.script = says(said, tokenizer)
    asked = {**ASKED, **fields}
    whole = served.client.post(RESPONSES, json=asked).json()
    stream = told(served.client.post(RESPONSES, json={**asked, "stream": True}))
    assert settled("-x", stream[-1]["response"]) == settled("-x", whole)
    assert stream[-1]["type"] == f"response.{whole['status']}"
    assert [each["type"] for each in stream[:2]] == ["response.created", "response.in_progress"]
    assert stream[0]["response"]["status"] == "in_progress"
    done = [each["item"] for each in stream if each["type"] == "response.output_item.done"]
    assert done == stream[-1]["response"]["output"]
    for index, item in enumerate(done):
        deltas = [e["delta"] for e in stream if "delta" in e and e["output_index"] == index]
        assert "".join(deltas) == item.get("arguments", item.get("content", [{}])[0].get("text"))


def test_the_order_of_an_output_is_that_of_its_items(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(f"First.\n{CALL}\nLast.", tokenizer)
    asked = {**ASKED, "tools": TOOLS, "max_output_tokens": 80}
    output = served.client.post(RESPONSES, json=asked).json()["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert [output[0]["content"][0]["text"], output[2]["content"][0]["text"]] == ["First.", "Last."]
    assert [item["status"] for item in output] == ["completed"] * 3


def test_the_openai_client_reads_a_stream(served: Served, tokenizer: TextTokenizer) -> None:
    served.engine.script = says(f"Let me see.\n{CALL}", tokenizer)
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(
            model=MODEL,
            input="Hi",
            tools=[{"type": "function", "name": "find", "parameters": {}, "strict": False}],
        ) as stream,
    ):
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert response.output_text == "Let me see."
    assert "response.function_call_arguments.delta" in kinds
    assert response.output[1].type == "function_call"
    assert json.loads(response.output[1].arguments) == {"n": 7}


def test_a_stream_that_breaks_off_says_so_and_what_there_is(served: Served) -> None:
    served.engine.script = failing
    stream = told(served.client.post(RESPONSES, json={**ASKED, "stream": True}))
    error, failed = stream[-2:]
    assert (error["type"], error["code"]) == ("error", "not_finite")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["message"] == error["message"]


def failing(_: NewRequest) -> Iterator[int]:
    yield 100
    yield -1


def test_a_response_that_another_cancels_is_no_complete_one(served: Served) -> None:
    hold_after_first_token(served)
    with served.client.stream("POST", RESPONSES, json={**ASKED, "stream": True}) as reply:
        lines = reply.iter_lines()
        created = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
        name = created["response"]["id"]
        served.client.post(f"/v1/requests/{name}/cancel").raise_for_status()
        served.do(served.engine.may_step.set)
        served.engine.script = lambda _: repeat(100)
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: ")][-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]
    assert last["response"]["incomplete_details"] is None


def test_a_client_that_goes_away_ends_its_response(served: Served) -> None:
    hold_after_first_token(served)
    with served.client.stream("POST", RESPONSES, json={**ASKED, "stream": True}) as reply:
        next(reply.iter_lines())
    assert eventually(lambda: len(served.engine.aborted) == 1)
    served.do(served.engine.may_step.set)
