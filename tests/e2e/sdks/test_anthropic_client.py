"""The `anthropic` client against the real server with the model in the box."""

import json
from collections.abc import Iterator, Sequence
from typing import Literal

import anthropic
import pytest
from anthropic.types import MessageParam, OutputConfigParam, TextBlockParam, ToolParam
from pydantic import BaseModel

from tests.e2e.server_process import MODEL, ServerProcess, server_process
from tests.server.apis.anthropic import joined

HELLO: list[MessageParam] = [{"role": "user", "content": "Who art thou?"}]
KEY = "key-of-the-tests"
NUM_STEP_TOKENS = 64
BLOCK_SIZE = 16
FIND: ToolParam = {
    "name": "find",
    "description": "Finds a thing.",
    "input_schema": {
        "type": "object",
        "properties": {
            "thing": {"type": "string", "enum": ["sword", "crown"]},
            "number": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["thing", "number"],
    },
}
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"is_king": {"type": "boolean"}},
    "required": ["is_king"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ("--dtype", "float32", "--max-num-batched-tokens", str(NUM_STEP_TOKENS))
    with server_process(*flags, "--api-key", KEY) as running:
        yield running


@pytest.fixture
def thinking() -> Iterator[anthropic.Anthropic]:
    """A client of a server whose model is known to reason."""
    with (
        server_process("--dtype", "float32", "--reasoning-parser", "think") as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


def dumped(blocks: Sequence[BaseModel]) -> list[object]:
    """Blocks without what the client adds to those of a stream."""
    return [block.model_dump(exclude={"parsed_output"}) for block in blocks]


def test_a_message_and_its_stream(client: anthropic.Anthropic) -> None:
    seeded = {"seed": 5}
    whole = client.messages.create(
        model=MODEL, messages=HELLO, max_tokens=4, extra_body=seeded, system="Be brief."
    )
    assert (whole.role, whole.stop_reason, whole.model) == ("assistant", "max_tokens", MODEL)
    (block,) = whole.content
    assert block.type == "text" and block.text
    with client.messages.stream(
        model=MODEL, messages=HELLO, max_tokens=4, extra_body=seeded, system="Be brief."
    ) as stream:
        streamed = stream.get_final_message()
    assert dumped(streamed.content) == dumped(whole.content)
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("max_tokens", 4)
    assert whole._request_id


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_cached_tokens_are_apart_from_the_others(client: anthropic.Anthropic) -> None:
    asked: list[MessageParam] = [{"role": "user", "content": "My lord, I know not. " * 12}]
    counted = client.messages.count_tokens(model=MODEL, messages=asked).input_tokens
    first, second = (
        client.messages.create(model=MODEL, messages=asked, max_tokens=1).usage for _ in range(2)
    )
    assert (first.input_tokens, first.cache_read_input_tokens) == (counted, 0)
    assert second.cache_read_input_tokens and first.cache_creation_input_tokens == 0
    assert second.input_tokens + second.cache_read_input_tokens == counted
    with client.messages.stream(model=MODEL, messages=asked, max_tokens=1) as stream:
        begun = next(iter(stream))
        assert begun.type == "message_start"
        usage = begun.message.usage
        assert usage.cache_read_input_tokens == second.cache_read_input_tokens
        assert usage.input_tokens == second.input_tokens
        assert stream.get_final_message().usage.input_tokens == second.input_tokens


def test_a_long_prompt_is_told_of_by_pings(server: ServerProcess) -> None:
    asked = {"messages": [{"role": "user", "content": "Thou and thee. " * 60}], "max_tokens": 1}
    reply = server.client.post(
        "/v1/messages", json=asked | {"stream": True}, headers={"x-api-key": KEY}
    )
    kinds = [event["type"] for event in joined.events(reply)]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("ping") > 1 and kinds.count("message_start") == 1


def test_tools_make_a_round_trip(client: anthropic.Anthropic) -> None:
    called = client.messages.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=200,
        tools=[FIND],
        tool_choice={"type": "tool", "name": "find"},
        extra_body={"seed": 3},
    )
    (use,) = called.content
    assert use.type == "tool_use" and called.stop_reason == "tool_use"
    assert use.input["thing"] in ("sword", "crown")
    number = use.input["number"]
    assert isinstance(number, int) and 1 <= number <= 9
    answer = client.messages.create(
        model=MODEL,
        max_tokens=8,
        tools=[FIND],
        messages=[
            *HELLO,
            {"role": "assistant", "content": called.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": use.id, "content": "A sword"},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ],
    )
    assert answer.content


class Person(BaseModel):
    """Somebody as the model describes them."""

    title: Literal["lord", "duke"]
    is_king: bool


def test_an_output_is_parsed_as_a_model_of_pydantic(client: anthropic.Anthropic) -> None:
    done = client.messages.parse(
        model=MODEL, messages=HELLO, max_tokens=200, output_format=Person, extra_body={"seed": 3}
    )
    assert done.stop_reason == "end_turn"
    assert isinstance(done.parsed_output, Person)


def test_a_call_is_streamed_as_it_is_made(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model=MODEL,
        messages=HELLO,
        max_tokens=200,
        tools=[FIND],
        tool_choice={"type": "any"},
        extra_body={"seed": 3},
    ) as stream:
        parts = [each.partial_json for each in stream if each.type == "input_json"]
        streamed = stream.get_final_message()
    assert len(parts) > 1
    (first, *_) = streamed.content
    assert first.type == "tool_use" and first.input["thing"] in ("sword", "crown")


@pytest.mark.long  # a server of its own; tests/server/apis/anthropic has reasoning in every run
def test_reasoning_is_a_block_that_can_be_sent_back(thinking: anthropic.Anthropic) -> None:
    """The schema has the model go on to an answer, whenever its reasoning is closed."""
    asked: list[MessageParam] = [*HELLO, {"role": "assistant", "content": "<think>"}]
    form: OutputConfigParam = {"format": {"type": "json_schema", "schema": SCHEMA}}
    with thinking.messages.stream(
        model=MODEL,
        messages=asked,
        max_tokens=60,
        thinking={"type": "enabled", "budget_tokens": 8},
        output_config=form,
        extra_body={"seed": 7},
    ) as stream:
        thoughts = "".join(each.thinking for each in stream if each.type == "thinking")
        streamed = stream.get_final_message()
    whole = thinking.messages.create(
        model=MODEL,
        messages=asked,
        max_tokens=60,
        thinking={"type": "enabled", "budget_tokens": 8},
        output_config=form,
        extra_body={"seed": 7},
    )
    assert dumped(whole.content) == dumped(streamed.content)
    thought, answer = whole.content
    assert thought.type == "thinking" and thought.thinking == thoughts and thought.signature
    assert answer.type == "text" and isinstance(json.loads(answer.text)["is_king"], bool)
    details = whole.usage.output_tokens_details
    assert details is not None and 0 < details.thinking_tokens < whole.usage.output_tokens
    again: list[MessageParam] = [*HELLO, {"role": "assistant", "content": whole.content}, *HELLO]
    assert thinking.messages.create(model=MODEL, messages=again, max_tokens=4).content


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    greedy = {"temperature": 0}
    free = client.messages.create(model=MODEL, messages=HELLO, max_tokens=24, extra_body=greedy)
    (block,) = free.content
    assert block.type == "text"
    stop = block.text[len(block.text) // 2 : len(block.text) // 2 + 3]
    done = client.messages.create(
        model=MODEL, messages=HELLO, max_tokens=24, stop_sequences=[stop], extra_body=greedy
    )
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", stop)
    (cut,) = done.content
    assert cut.type == "text" and cut.text == block.text[: block.text.index(stop)]


def test_what_a_coding_agent_sends_is_answered(client: anthropic.Anthropic) -> None:
    """System blocks with marks for the cache, many tools, betas, metadata, edits that keep all."""
    system: list[TextBlockParam] = [
        {"type": "text", "text": "You are an agent."},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    tools: list[ToolParam] = [{**FIND, "name": f"find_{number}"} for number in range(4)]
    raw = client.beta.messages.with_raw_response.create(
        model=MODEL,
        max_tokens=8,
        system=system,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>None.</system-reminder>"},
                    {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
        tools=[*tools],
        metadata={"user_id": "user_1"},
        betas=["interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert raw.parse().content
    warnings = raw.headers.get("x-quire-warnings", "")
    assert "interleaved-thinking-2025-05-14" not in warnings and "metadata" not in warnings


def test_what_is_put_into_the_cache_is_found_there(client: anthropic.Anthropic) -> None:
    """All but the last block at most, whose last token is computed again."""
    system: list[TextBlockParam] = [
        {
            "type": "text",
            "text": "To be, or not to be, that is the question. " * 12,
            "cache_control": {"type": "ephemeral"},
        }
    ]
    first, second = (
        client.messages.create(model=MODEL, max_tokens=1, system=system, messages=HELLO).usage
        for _ in range(2)
    )
    created, read = first.cache_creation_input_tokens, first.cache_read_input_tokens
    assert created and read is not None and first.cache_creation is not None
    parts = first.cache_creation
    assert (parts.ephemeral_5m_input_tokens, parts.ephemeral_1h_input_tokens) == (created, 0)
    found, more = second.cache_read_input_tokens, second.cache_creation_input_tokens
    assert found is not None and more is not None
    assert found >= created + read - BLOCK_SIZE
    assert first.input_tokens + created + read == second.input_tokens + found + more


def test_errors_are_the_clients_own(server: ServerProcess, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="nope", messages=HELLO, max_tokens=1)
    assert missing.value.error_code == "model_not_found"
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=1,
            tools=[{"type": "bash_20250124", "name": "bash"}],
            tool_choice={"type": "tool", "name": "bash"},
        )
    assert wrong.value.type == "invalid_request_error"
    assert "tool_choice.name" in wrong.value.message
    with pytest.raises(anthropic.BadRequestError) as too_long:
        long: MessageParam = {"role": "user", "content": "To be, or not to be. " * 5000}
        client.messages.create(model=MODEL, messages=[long], max_tokens=1)
    assert too_long.value.error_code == "context_length_exceeded"
    with pytest.raises(anthropic.GatewayTimeoutError) as late:
        client.messages.create(
            model=MODEL, messages=HELLO, max_tokens=200, extra_body={"deadline_ms": 0.001}
        )
    assert late.value.type == "timeout_error"
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model=MODEL, messages=HELLO, max_tokens=1)


def test_a_header_of_either_kind_holds_the_key(server: ServerProcess) -> None:
    asked = {"messages": HELLO, "max_tokens": 1}
    for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
        reply = server.client.post("/v1/messages", json=asked, headers=headers)
        assert reply.status_code == 200, reply.text
        assert json.loads(reply.text)["usage"]["output_tokens"] == 1
