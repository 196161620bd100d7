"""Bodies as agents send them, in the shape of those of Claude Code, are accepted, and what of them
is left out is said."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.anthropic.turns import BILLING
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.anthropic.test_messages import (
    ASKED,
    COUNT,
    MESSAGES,
    RESULT,
    TOOL,
    USE,
    post,
    text,
    turn,
)
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_tools import says
from tests.server.generation.test_generic_tools import roomy
from tests.server.scripted_engine import BLOCK_SIZE, repeat_prompt
from tests.server.served import Served, plain_config, serving, with_model

IGNORED = "x-quire-ignored"
CACHED: dict[str, object] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
HOSTED = (
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "computer_20250124", "name": "computer", "display_width_px": 9},
    {"type": "memory_20250818", "name": "memory"},
    {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
)
SEARCHED: tuple[dict[str, object], ...] = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "x"}]},
)


@pytest.fixture(scope="module")
def roomy_server() -> Iterator[Served]:
    with roomy(plain_config()) as served:
        served.engine.script = repeat_prompt
        yield served


def body(**fields: object) -> dict[str, object]:
    return {"messages": [ASKED], "max_tokens": 4, **fields}


def agent_body() -> dict[str, object]:
    """A turn in the middle of a conversation, with what an agent sends along."""
    reminder = text("<system-reminder>\nThe day is Monday.\n</system-reminder>\n")
    thought: dict[str, object] = {
        "type": "thinking",
        "thinking": "Hm.",
        "signature": "EqQBCgIYAhIM" * 9,
    }
    answer = turn("assistant", thought, text("I look."), USE | {"caller": {"type": "direct"}})
    told: dict[str, object] = {"role": "system", "content": "These agents are there: none."}
    answered = turn("user", RESULT | {"is_error": False}, text("And then?") | CACHED)
    tool = TOOL | {"description": "It finds.", "eager_input_streaming": True}
    return {
        "model": "test-model",
        "max_tokens": 32000,
        "stream": True,
        "system": [text(f"{BILLING} cc_version=1.a;"), text("You are an agent.") | CACHED],
        "messages": [turn("user", reminder, text("Find it.")), told, answer, answered],
        "tools": [tool, TOOL | {"name": "later", "defer_loading": True}],
        "metadata": {"user_id": '{"device_id": "x"}'},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "service_tier": "auto",
        "container": None,
        "mcp_servers": [],
    }


def test_a_turn_of_an_agent_is_taken(roomy_server: Served, tokenizer: TextTokenizer) -> None:
    served = roomy_server
    headers = {
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-version": "2023-06-01",
        "anthropic-dangerous-direct-browser-access": "true",
    }
    reply = served.client.post(f"{MESSAGES}?beta=true", json=agent_body(), headers=headers)
    assert reply.status_code == 200, reply.text
    assert IGNORED not in reply.headers
    assert "beta" not in reply.headers["x-quire-warnings"]
    shown = prompt_text(served, tokenizer)
    assert "cc_version" not in shown and "system[0]" in reply.headers["x-quire-warnings"]
    for said in ("You are an agent.", "The day is Monday.", "These agents are there"):
        assert said in shown
    assert shown.index("I look.") < shown.index("And then?")
    counted = {"model", "system", "messages", "tools", "thinking", "metadata"}
    fields = {name: value for name, value in agent_body().items() if name in counted}
    count = served.client.post(f"{COUNT}?beta=true", json=fields, headers=headers)
    assert count.json() == {"input_tokens": len(served.engine.submitted[-1].prompt_token_ids)}


def test_the_version_of_a_client_divides_no_prefix(served: Served) -> None:
    prompts = set()
    for version in ("2.1.197.84c", "2.1.197.685", "3"):
        header = text(f"{BILLING} cc_version={version}; cc_entrypoint=cli;")
        post(served, system=[header, text("Be brief.")])
        prompts.add(served.engine.submitted[-1].prompt_token_ids)
    post(served, system="Be brief.")
    assert prompts == {served.engine.submitted[-1].prompt_token_ids}


@pytest.mark.parametrize("stream", [True, False])
def test_an_output_ends_with_the_context(
    served: Served, tokenizer: TextTokenizer, stream: bool
) -> None:
    """Agents that do not know the model allow more tokens than fit."""
    served.engine.script = says("word " * 300, tokenizer)
    reply = served.client.post(MESSAGES, json=body(max_tokens=32000, stream=stream))
    assert reply.status_code == 200
    assert '"stop_reason":"model_context_window_exceeded"' in reply.text
    new = served.engine.submitted[-1]
    num_left = 256 - len(new.prompt_token_ids)
    assert new.stopping.max_tokens == num_left
    assert (
        f"max_tokens is 32000, and the context has {num_left} left"
        in reply.headers["x-quire-warnings"]
    )
    exact = served.client.post(MESSAGES, json=body(max_tokens=num_left))
    assert exact.json()["stop_reason"] == "max_tokens"
    assert "x-quire-warnings" not in exact.headers


@pytest.mark.parametrize("tool", HOSTED, ids=lambda each: each["type"])
def test_a_hosted_tool_is_left_out_and_said(
    served: Served, tokenizer: TextTokenizer, tool: dict[str, object]
) -> None:
    reply = served.client.post(MESSAGES, json=body(tools=[TOOL, tool]))
    assert reply.status_code == 200, reply.text
    assert reply.headers[IGNORED] == "tools[1]"
    assert str(tool["type"]) not in prompt_text(served, tokenizer)
    alone = body(tools=[tool], tool_choice={"type": "auto"})
    reply = served.client.post(MESSAGES, json=alone)
    assert (reply.status_code, reply.headers[IGNORED]) == (200, "tools[0]")
    for choice, param in (
        ({"type": "any"}, "tool_choice.type"),
        ({"type": "tool", "name": tool.get("name", "")}, "tool_choice.name"),
    ):
        error = served.client.post(MESSAGES, json=alone | {"tool_choice": choice}).json()["error"]
        assert error["details"]["param"] == param
        assert "input_schema" in error["message"]


def test_a_tool_of_code_alone_is_left_out(served: Served) -> None:
    tools = [TOOL, TOOL | {"name": "x", "allowed_callers": ["code_execution_20250825"]}]
    reply = served.client.post(MESSAGES, json=body(tools=tools))
    assert (reply.status_code, reply.headers[IGNORED]) == (200, "tools[1]")


def test_a_tool_for_later_is_shown_at_once(served: Served, tokenizer: TextTokenizer) -> None:
    later = TOOL | {"name": "later_tool", "defer_loading": True, "input_examples": [{"n": 1}]}
    reply = served.client.post(MESSAGES, json=body(tools=[later]))
    for name in ("defer_loading", "input_examples"):
        assert f"tools[0].{name}" in reply.headers["x-quire-warnings"]
    assert "later_tool" in prompt_text(served, tokenizer)


def test_blocks_of_hosted_tools_are_left_out_and_said(
    served: Served, tokenizer: TextTokenizer
) -> None:
    said = turn("assistant", *SEARCHED, text("Found it."))
    reply = served.client.post(MESSAGES, json=body(messages=[ASKED, said, ASKED]))
    assert reply.status_code == 200, reply.text
    assert reply.headers[IGNORED] == "messages[1].content[0], messages[1].content[1]"
    shown = prompt_text(served, tokenizer)
    assert "Found it." in shown and "srvtoolu" not in shown


def test_text_in_other_blocks_is_shown(roomy_server: Served, tokenizer: TextTokenizer) -> None:
    served = roomy_server
    plain = {"type": "text", "media_type": "text/plain", "data": "roses are red"}
    document: dict[str, object] = {
        "type": "document",
        "title": "Poem",
        "source": plain,
        "context": "by me",
    }
    parts = {"type": "content", "content": [text("violets are blue")]}
    found: dict[str, object] = {
        "type": "search_result",
        "title": "Sky",
        "source": "http://x",
        "content": [text("y")],
    }
    reference = {"type": "tool_reference", "tool_name": "find"}
    result = RESULT | {"content": [text("a"), document, found, reference]}
    turns = [
        turn("user", document, document | {"source": parts, "title": None}, found),
        turn("assistant", {"type": "compaction", "content": "all went well"}, USE),
        turn("user", result),
    ]
    reply = served.client.post(MESSAGES, json=body(messages=turns, tools=[TOOL]))
    assert reply.status_code == 200, reply.text
    shown = prompt_text(served, tokenizer)
    for said in ("Poem\nby me\nroses are red", "by me\nviolets are blue", "Sky\nhttp://x\ny"):
        assert said in shown
    assert "all went well" in shown
    assert "a\nPoem\nby me\nroses are red\nSky\nhttp://x\ny\nfind" in shown


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"type": "image", "source": {"type": "base64"}}, "type"),
        ({"type": "document", "source": {"type": "base64", "data": "x"}}, "source.type"),
        ({"type": "document", "source": {"type": "url", "url": "x"}}, "source.type"),
        ({"type": "document", "source": "x"}, "source"),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "image", "source": {}}]},
            },
            "source.content[0].type",
        ),
        ({"type": "search_result", "content": [{"type": "document"}]}, "content[0].type"),
        ({"type": "compaction", "content": "x"}, "type"),
        ({"type": "tool_reference", "tool_name": "x"}, "type"),
        ({"type": "hologram"}, "type"),
    ],
)
def test_what_is_no_text_is_refused_by_name(
    served: Served, block: dict[str, object], path: str
) -> None:
    reply = served.client.post(MESSAGES, json=body(messages=[turn("user", text("a"), block)]))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["details"]["param"] == f"messages[0].content[1].{path}"


def test_unknown_fields_of_histories_are_said(served: Served) -> None:
    said = turn("assistant", text("Yes") | {"citations": [{"type": "x"}], "mood": "glad"})
    turns = [ASKED | {"name": "me"}, said | {"id": "msg_1", "stop_reason": "end_turn"}, ASKED]
    tools = [TOOL | {"parameters": {"type": "object"}, "x": None}]
    reply = served.client.post(MESSAGES, json=body(messages=turns, tools=tools))
    assert reply.status_code == 200, reply.text
    named = reply.headers[IGNORED].split(", ")
    assert sorted(named) == [
        "messages[0].name",
        "messages[1].content[0].mood",
        "tools[0].parameters",
    ]


@pytest.mark.parametrize(
    ("edit", "ignored"),
    [
        ({"type": "clear_thinking_20251015", "keep": "all"}, None),
        ({"type": "clear_thinking_20251015"}, "context_management.edits[0]"),
        ({"type": "clear_tool_uses_20250919"}, "context_management.edits[0]"),
        ({"type": "compact_20260112"}, "context_management.edits[0]"),
    ],
)
def test_edits_that_are_not_made_are_said(
    served: Served, edit: dict[str, object], ignored: str | None
) -> None:
    for path in (MESSAGES, COUNT):
        asked = body(context_management={"edits": [edit]})
        if path == COUNT:
            del asked["max_tokens"]
        reply = served.client.post(path, json=asked)
        assert reply.status_code == 200, reply.text
        assert reply.headers.get(IGNORED) == ignored


def test_a_later_turn_of_the_system_is_shown(served: Served, tokenizer: TextTokenizer) -> None:
    later = [ASKED, turn("system", text("The day is Monday.")), turn("assistant", text("So"))]
    post(served, system="Be brief.", messages=[*later, ASKED])
    shown = prompt_text(served, tokenizer)
    assert shown.index("Be brief.") < shown.index("The day is Monday.") < shown.index("So")


BLOCK_TEXTS = st.lists(st.text("ab c", min_size=1, max_size=60), min_size=1, max_size=3)


@given(
    system=BLOCK_TEXTS,
    said=st.lists(BLOCK_TEXTS, min_size=1, max_size=4),
    marked=st.sets(st.integers(0, 12), max_size=4),
    stream=st.booleans(),
)
@cases(40)
def test_the_tokens_of_a_prompt_are_counted_once(
    module_server: Served,
    system: list[str],
    said: list[list[str]],
    marked: set[int],
    stream: bool,
) -> None:
    """Found in the cache, put into it up to the last mark, and others: together all."""
    served, number = module_server, 0
    contents = []
    for texts in (system, *said):
        blocks = []
        for each in texts:
            blocks.append(text(each) | (CACHED if number in marked else {}))
            number += 1
        contents.append(blocks)
    roles = ("user", "assistant")
    turns = [turn(roles[index % 2], *blocks) for index, blocks in enumerate(contents[1:])]
    asked = {"system": contents[0], "messages": turns, "max_tokens": 1, "stream": stream}
    reply = served.client.post(MESSAGES, json=asked)
    assert reply.status_code == 200, reply.text
    usage = last_usage(reply.text, stream)
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    others, read, created = (usage[name] for name in names)
    num_prompt = len(served.engine.submitted[-1].prompt_token_ids)
    assert others + read + created == num_prompt
    assert min(others, read, created) >= 0
    assert created == 0 or (read + created) % BLOCK_SIZE == 0
    last = max((each for each in marked if each < number), default=None)
    if last is None:
        assert created == 0
    elif last >= number - len(contents[-1]):
        assert read + created == max(num_prompt // BLOCK_SIZE * BLOCK_SIZE, read)


def last_usage(said: str, stream: bool) -> dict[str, int]:
    if not stream:
        usage: dict[str, int] = json.loads(said)["usage"]
        return usage
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]
    found: dict[str, int] = next(each for each in events if each["type"] == "message_delta")[
        "usage"
    ]
    return found


def test_the_cache_is_filled_up_to_the_mark(served: Served) -> None:
    """A mark on the system's prompt leaves what follows as input."""
    long, turns = "roses are red " * 8, [turn("user", text("violets are blue " * 3))]
    whole = post(served, system=[text(long)], messages=turns)["usage"]
    marked = post(served, system=[text(long) | CACHED], messages=turns)["usage"]
    count = served.client.post(COUNT, json={"system": long, "messages": [ASKED]}).json()
    assert isinstance(whole, dict) and isinstance(marked, dict)
    assert whole["cache_creation_input_tokens"] == 0
    created = marked["cache_creation_input_tokens"] + marked["cache_read_input_tokens"]
    assert 0 < created <= count["input_tokens"]
    assert created % BLOCK_SIZE == 0
    tool = post(served, tools=[TOOL | CACHED], system=long, messages=turns)["usage"]
    assert isinstance(tool, dict)
    everything = post(served, cache_control=CACHED["cache_control"], messages=turns)["usage"]
    assert isinstance(everything, dict)
    assert everything["input_tokens"] < BLOCK_SIZE


def test_without_a_prefix_cache_nothing_is_put_into_it() -> None:
    config = plain_config()
    engine = config.models[0].engine
    memory = replace(engine.memory, enable_prefix_caching=False)
    with serving(with_model(config, engine=replace(engine, memory=memory))) as served:
        usage = post(served, cache_control=CACHED["cache_control"])["usage"]
        assert isinstance(usage, dict)
        assert usage["cache_creation_input_tokens"] == 0
