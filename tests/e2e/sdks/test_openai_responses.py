"""The `openai` client's responses against the real server with the model in the box."""

import json
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseInputParam
from pydantic import BaseModel, Field

from tests.e2e.server_process import MODEL, ServerProcess, eventually, server_process

FIND: FunctionToolParam = {
    "type": "function",
    "name": "find",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"thing": {"type": "string", "enum": ["sword", "crown"]}},
        "required": ["thing"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--dtype", "float32") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_is_created_read_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=MODEL, input="Who art thou?", max_output_tokens=8, temperature=0
    )
    assert made.output_text
    assert made.status == "incomplete"
    assert client.responses.retrieve(made.id) == made
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stream_says_what_the_response_does(client: openai.OpenAI) -> None:
    whole = client.responses.create(
        model=MODEL, input="Who art thou?", max_output_tokens=16, temperature=0, top_logprobs=1
    )
    texts, last = list[str](), None
    for event in client.responses.create(
        model=MODEL,
        input="Who art thou?",
        max_output_tokens=16,
        temperature=0,
        top_logprobs=1,
        stream=True,
    ):
        if event.type == "response.output_text.delta":
            texts.append(event.delta)
        last = event
    assert len(texts) > 2
    assert last is not None and last.type == "response.incomplete"
    assert "".join(texts) == whole.output_text == last.response.output_text
    assert client.responses.retrieve(last.response.id) == last.response


def test_a_conversation_goes_on_from_a_response(client: openai.OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="Who art thou?", max_output_tokens=8, temperature=0
    )
    second = client.responses.create(
        model=MODEL,
        input="Say more.",
        previous_response_id=first.id,
        prompt_cache_key="a conversation",
        prompt_cache_options={"ttl": "30m"},
        max_output_tokens=8,
        temperature=0,
    )
    assert second.prompt_cache_key == "a conversation"
    assert second.prompt_cache_options is not None and second.prompt_cache_options.ttl == "30m"
    history: ResponseInputParam = [
        {"role": "user", "content": "Who art thou?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Say more."},
    ]
    whole = client.responses.create(
        model=MODEL, input=history, max_output_tokens=8, temperature=0, store=False
    )
    assert second.output_text == whole.output_text
    assert second.usage is not None and whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens
    details = second.usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens <= second.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp-1")
    assert refused.value.code == "previous_response_not_found"


def test_a_tool_is_called_in_a_stream_and_answered(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL,
        input="Find me something.",
        tools=[FIND],
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    call = called.output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments)["thing"] in ("sword", "crown")
    answered = client.responses.create(
        model=MODEL,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "It is here."}],
        previous_response_id=called.id,
        tools=[FIND],
        tool_choice="none",
        max_output_tokens=8,
    )
    assert answered.output_text


class Found(BaseModel):
    thing: Literal["sword", "crown"]
    number: int = Field(ge=1, le=9)


def test_a_response_is_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(
        model=MODEL, input="What is found?", text_format=Found, max_output_tokens=60
    ).output_parsed
    assert parsed is not None
    with client.responses.stream(
        model=MODEL, input="What is found?", text_format=Found, max_output_tokens=60
    ) as stream:
        assert stream.get_final_response().output_parsed is not None


def test_a_response_in_the_background_is_read_and_cancelled(client: openai.OpenAI) -> None:
    short = client.responses.create(
        model=MODEL, input="Who art thou?", max_output_tokens=8, background=True
    )
    running = ("queued", "in_progress")
    assert short.status in running
    assert eventually(lambda: client.responses.retrieve(short.id).status not in running, 30)
    assert client.responses.retrieve(short.id).output_text
    long = client.responses.create(
        model=MODEL, input="Tell me all.", background=True, tools=[FIND], tool_choice="none"
    )
    cancelled = client.responses.cancel(long.id)
    assert cancelled.status in ("cancelled", "completed", "incomplete")
    assert client.responses.retrieve(long.id) == cancelled
