"""Tools on SmolLM2, whose chat template knows nothing of them: a real server, a real client."""

import json
from collections.abc import Iterator, Mapping
from itertools import product

import openai
import pytest
from openai.types.chat import ChatCompletionToolParam

from tests.e2e.server_process import ServerProcess, server_process
from tests.long import long_but_for
from tests.real.models import real_folder

MODEL = "smollm2"
CITY: dict[str, object] = {"type": "string"}
WEATHER: dict[str, object] = {
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
}
TIME: dict[str, object] = {
    "type": "object",
    "properties": {"city": CITY, "format": {"type": "string", "enum": ["12h", "24h"]}},
    "required": ["city", "format"],
    "additionalProperties": False,
}
FORMATS = {"12h", "24h"}
ASKED = "What is the weather in Rome?"
Calls = list[tuple[str, str]]


def tools(*, strict: bool = False) -> list[ChatCompletionToolParam]:
    schemas = {"get_weather": WEATHER, "get_time": TIME}
    return [
        {
            "type": "function",
            "function": {"name": name, "description": f"{name} of a city", "parameters": schema}
            | ({"strict": True} if strict else {}),  # type: ignore[typeddict-item]
        }
        for name, schema in schemas.items()
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ("--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "2048")
    folder = real_folder(MODEL)
    with server_process(str(folder), *flags, "--kv-cache-memory-bytes", "200M") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def check(calls: Calls) -> None:
    """Check that the arguments are of their tool's schema."""
    for name, arguments in calls:
        given = json.loads(arguments)
        wanted = {"get_weather": {"city"}, "get_time": {"city", "format"}}[name]
        assert set(given) == wanted and isinstance(given["city"], str)
        assert given.get("format", "24h") in FORMATS


def chat(client: openai.OpenAI, **fields: object) -> tuple[str, Calls, str]:
    """The answer, which is the same whole and streamed: text, calls and the reason of its end."""
    asked: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": ASKED}],
        "tools": tools(),
        "temperature": 0,
        "max_tokens": 120,
        **fields,
    }
    whole = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    made = whole.message.tool_calls or []
    calls = [(call.function.name, call.function.arguments) for call in made]
    said, parts, reason = "", dict[int, tuple[str, str]](), None
    for chunk in client.chat.completions.create(**asked, stream=True):  # type: ignore[call-overload]
        choice = chunk.choices[0]
        said += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            name, arguments = parts.get(call.index, ("", ""))
            parts[call.index] = (
                name + (call.function.name or ""),
                arguments + call.function.arguments,
            )
    streamed = (said, list(parts.values()), reason)
    assert streamed == (whole.message.content or "", calls, whole.finish_reason)
    return whole.message.content or "", calls, whole.finish_reason


def test_the_log_and_the_models_name_the_format(server: ServerProcess) -> None:
    assert "the generic format, not one of the model's own" in server.log()
    (card,) = server.client.get("/v1/models").json()["data"]
    assert (card["capabilities"]["tools"], card["capabilities"]["tool_format"]) == (True, "generic")


@long_but_for([(None, False), (1, True)], "seed, strict", product([None, 1], [False, True]))
def test_the_model_may_answer_in_text_or_call(
    client: openai.OpenAI, strict: bool, seed: int | None
) -> None:
    sampling = {} if seed is None else {"seed": seed, "temperature": 1.0}
    said, calls, reason = chat(client, tools=tools(strict=strict), **sampling)
    assert reason in (("tool_calls",) if calls else ("stop", "length")) and (said or calls)
    if strict:
        check(calls)


@pytest.mark.parametrize(
    ("choice", "parallel", "reason"),
    [
        pytest.param("required", True, "tool_calls", marks=pytest.mark.long),
        ("required", False, "tool_calls"),
        ({"type": "function", "function": {"name": "get_time"}}, True, "stop"),
    ],
)
def test_calls_that_must_be_made_are(
    client: openai.OpenAI, choice: object, parallel: bool, reason: str
) -> None:
    said, calls, ended = chat(client, tool_choice=choice, parallel_tool_calls=parallel)
    is_cut = parallel and ended == "length"  # so small a model may call until its tokens are out
    assert calls and (is_cut or (said, ended) == ("", reason))
    assert parallel or len(calls) == 1
    assert choice == "required" or [name for name, _ in calls] == ["get_time"]
    check(calls)


@pytest.mark.parametrize("with_tools", [True, False])
def test_a_result_is_read(client: openai.OpenAI, with_tools: bool) -> None:
    called = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    messages = [
        {"role": "user", "content": ASKED},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "It is sunny in Rome, 24 degrees."},
    ]
    offered: Mapping[str, object] = {} if with_tools else {"tools": openai.omit}
    said, calls, _ = chat(client, messages=messages, **offered)
    assert "24" in said or (with_tools and calls)


def test_responses_go_on_from_calls(client: openai.OpenAI) -> None:
    offered = [{"type": "function", **tool["function"]} for tool in tools()]
    asked = {"model": MODEL, "tools": offered, "temperature": 0, "max_output_tokens": 120}
    first = client.responses.create(  # type: ignore[call-overload]
        input=ASKED, tool_choice="required", parallel_tool_calls=False, **asked
    )
    calls = [(item.name, item.arguments) for item in first.output]
    check(calls)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny, 24 degrees"}
        for item in first.output
    ]
    second = client.responses.create(input=results, previous_response_id=first.id, **asked)  # type: ignore[call-overload]
    assert second.output


def test_messages_go_on_from_calls(server: ServerProcess) -> None:
    offered = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in tools()
    ]
    turns: list[dict[str, object]] = [{"role": "user", "content": ASKED}]
    asked = {"max_tokens": 120, "temperature": 0, "tools": offered}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    chosen = {**asked, "messages": turns, "tool_choice": choice}
    body = server.client.post("/v1/messages", json=chosen).json()
    assert body["stop_reason"] == "tool_use"
    check([(block["name"], json.dumps(block["input"])) for block in body["content"]])
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny, 24 degrees"}
        for block in body["content"]
    ]
    turns += [
        {"role": "assistant", "content": body["content"]},
        {"role": "user", "content": results},
    ]
    reply = server.client.post("/v1/messages", json={**asked, "messages": turns})
    assert reply.status_code == 200 and reply.json()["content"]
