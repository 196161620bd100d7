"""Required calls with Qwen 3's tokenizer, whose tags of calls and reasoning are added tokens that
are not special: a real server over a small random model, a real client."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import openai
import pytest
from tokenizers import Tokenizer

from tests.e2e.server_process import ServerProcess, server_process
from tests.real.models import real_folder
from tests.real.random_model import write_random_model

MODEL = "random"
MAX_TOKENS = 300
pytestmark = pytest.mark.long  # the parts of it have this tokenizer in every run, test_calls.py
UNITS = ["c", "</tool_call>", "<think>"]
"""The values that calls may have; some are tags themselves."""
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": UNITS},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}
ASKED: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    "tools": [TOOL],
    "tool_choice": "required",
}
SEEDS = range(3)
LIKELY = 8
"""Added to the logit of a token that all but surely begins an output, and seldom comes later."""


class Reply(NamedTuple):
    """The calls that a client reads, as pairs of name and arguments."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    finish_reason: str | None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("qwen3")
    write_random_model(real_folder("tokenizers/qwen3"), folder, max_len=1024)
    flags = ("--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-memory-bytes", "50M")
    with server_process(str(folder), *flags) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@cache
def opening_tag() -> int:
    """Return the token that opens a reasoning."""
    tokenizer = Tokenizer.from_file(str(real_folder("tokenizers/qwen3") / "tokenizer.json"))
    token_id = tokenizer.token_to_id("<think>")
    assert token_id is not None
    return token_id


def whole(client: openai.OpenAI, max_tokens: int = MAX_TOKENS, **fields: Any) -> Reply:
    asked = {**ASKED, **fields, "max_tokens": max_tokens}
    (choice,) = client.chat.completions.create(**asked).choices
    message: Any = choice.message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    reasoning = message.to_dict().get("reasoning_content") or ""
    return Reply(message.content or "", reasoning, calls, choice.finish_reason)


def streamed(client: openai.OpenAI, max_tokens: int = MAX_TOKENS, **fields: Any) -> Reply:
    asked = {**ASKED, **fields, "max_tokens": max_tokens}
    stream: Any = client.chat.completions.create(**asked, stream=True)
    content, reasoning, reason = "", "", None
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for chunk in stream:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasoning += choice.delta.to_dict().get("reasoning_content") or ""
        reason = choice.finish_reason
        for call in choice.delta.tool_calls or []:
            names.setdefault(call.index, call.function.name)
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    return Reply(content, reasoning, [(names[i], arguments[i]) for i in names], reason)


def check(calls: list[tuple[str, str]]) -> None:
    """Check that calls are of their tool's schema."""
    for name, arguments in calls:
        given = json.loads(arguments)
        assert name == "get_weather" and set(given) == {"unit", "days"}
        assert given["unit"] in UNITS and given["days"] in range(1, 10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_required_call_is_read_whole_and_streamed(client: openai.OpenAI, seed: int) -> None:
    fields: Any = {
        "seed": seed,
        "parallel_tool_calls": False,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    reply = whole(client, **fields)
    assert (reply.finish_reason, reply.content, len(reply.calls)) == ("tool_calls", "", 1)
    check(reply.calls)
    assert streamed(client, **fields) == reply


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_follows_reasoning_that_a_budget_closes(client: openai.OpenAI, seed: int) -> None:
    fields: Any = {
        "seed": seed,
        "parallel_tool_calls": False,
        "logit_bias": {str(opening_tag()): LIKELY},
        "extra_body": {"thinking_token_budget": 12},
    }
    reply = whole(client, **fields)
    assert (reply.finish_reason, reply.content, len(reply.calls)) == ("tool_calls", "", 1)
    check(reply.calls)
    assert reply.reasoning and "</think>" not in reply.reasoning
    assert streamed(client, **fields) == reply


def test_calls_have_no_content_wherever_they_are_cut(client: openai.OpenAI) -> None:
    fields: Any = {
        "seed": 0,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    for max_tokens in range(1, 40, 3):
        reply = whole(client, max_tokens, **fields)
        assert (reply.content, reply.finish_reason) == ("", "length")
        assert streamed(client, max_tokens, **fields) == reply
