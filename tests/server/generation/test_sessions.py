"""Conversations of agents as the engine is told of them: their names and APIs, for how long prompts
are kept, and which answers call tools."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.orders import NoteTurn
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.batches.batch_files import encode, line
from tests.server.apis.openai.test_tools import CALL, says
from tests.server.base_bodies import BASE
from tests.server.generation.test_generic_tools import roomy
from tests.server.scripted_engine import repeat_prompt
from tests.server.served import (
    Served,
    bundled_tokenizer,
    eventually,
    hold_after_first_token,
    plain_config,
    serving,
)

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
AGENTS = (CHAT, RESPONSES, MESSAGES)
LIMITS = {CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
ENDPOINTS = {
    "/v1/completions": "completions",
    CHAT: "chat",
    RESPONSES: "responses",
    MESSAGES: "messages",
    "/v1/embeddings": "embeddings",
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
USER = {"role": "user", "content": "Hi"}
FOUND = "found"
CUT = CALL[:-14]
"""A call that breaks off within its arguments."""


def with_tools(path: str) -> dict[str, object]:
    if path == MESSAGES:
        return {"tools": [{"name": "find", "input_schema": SCHEMA}]}
    function = {"name": "find", "parameters": SCHEMA}
    tool = {"type": "function", "function": function}
    return {"tools": [tool if path == CHAT else {"type": "function", **function}]}


def with_result(path: str) -> dict[str, object]:
    """A conversation that holds the result of a tool, without the tools."""
    if path == CHAT:
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "content": FOUND, "tool_call_id": "c1"}
        return {"messages": [USER, said, result]}
    if path == MESSAGES:
        use = {"type": "tool_use", "id": "c1", "name": "find", "input": {}}
        block = {"type": "tool_result", "tool_use_id": "c1", "content": FOUND}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]
        return {"messages": [USER, *turns]}
    called = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": FOUND}
    return {"input": [USER, called, output]}


def ask(served: Served, path: str, **fields: object) -> httpx.Response:
    reply = served.client.post(path, json={**BASE[path], **fields})
    assert reply.status_code == 200, reply.text
    return reply


@pytest.fixture(scope="module")
def roomy_server() -> Iterator[Served]:
    with roomy(plain_config()) as served:
        yield served


@pytest.fixture
def agent(roomy_server: Served) -> Served:
    roomy_server.engine.script = repeat_prompt
    roomy_server.engine.submitted.clear()
    roomy_server.engine.turns.clear()
    return roomy_server


@given(
    path=st.sampled_from(AGENTS),
    stream=st.booleans(),
    said=st.lists(st.sampled_from(["Let me see.\n", CALL, CALL + "\n"]), max_size=3),
    is_cut=st.booleans(),
    tools=st.sampled_from(["declared", "used", "none"]),
    n=st.integers(1, 3),
)
@cases(60)
def test_each_answer_of_an_agent_is_told_once_with_its_calls(
    roomy_server: Served,
    path: str,
    stream: bool,
    said: list[str],
    is_cut: bool,
    tools: str,
    n: int,
) -> None:
    engine = roomy_server.engine
    engine.script = says("".join(said) + (CUT if is_cut else ""), bundled_tokenizer())
    engine.submitted.clear()
    engine.turns.clear()
    fields = {"declared": with_tools(path), "used": with_result(path), "none": {}}[tools]
    several = {"n": n} if path == CHAT else {}
    limit = {LIMITS[path]: 300}
    ask(roomy_server, path, **fields, **several, **limit, stream=stream)
    names = [request.id for request in engine.submitted]
    assert len(names) == (n if path == CHAT else 1)
    has_calls = any(CALL in each for each in said) and not is_cut
    calls_tools = tools == "declared" and has_calls
    expected = [] if tools == "none" else [NoteTurn(name, calls_tools) for name in names]
    assert sorted(engine.turns, key=lambda each: each.request_id) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_a_stop_string_ends_is_told_once_the_engine_has_ended_it(
    agent: Served, tokenizer: TextTokenizer, stream: bool
) -> None:
    agent.engine.script = says(f"{CALL} so it is, and more", tokenizer)
    fields = {"stop": "so it", "max_tokens": 90, "stream": stream}
    ask(agent, CHAT, **with_tools(CHAT), **fields)
    (request,) = agent.engine.submitted
    assert request.id in agent.engine.aborted
    assert agent.engine.turns == [NoteTurn(request.id, calls_tools=True)]


NAMED = {"type": "function", "function": {"name": "find"}}
CUSTOM = CALL.replace('{"n": 7}', '{"input": "x"}')


@pytest.mark.parametrize(
    ("path", "said", "fields"),
    [
        (CHAT, CALL, with_tools(CHAT) | {"tool_choice": NAMED}),
        (CHAT, CALL, with_tools(CHAT) | {"tool_choice": "required"}),
        (CHAT, CALL, {"functions": [{"name": "find", "parameters": SCHEMA}]}),
        (RESPONSES, CUSTOM, {"tools": [{"type": "custom", "name": "find"}]}),
        (MESSAGES, CALL, with_tools(MESSAGES) | {"tool_choice": {"type": "tool", "name": "find"}}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_all_kinds_of_tools_are_told(
    agent: Served,
    tokenizer: TextTokenizer,
    path: str,
    said: str,
    fields: dict[str, object],
    stream: bool,
) -> None:
    agent.engine.script = says(said, tokenizer)
    ask(agent, path, **fields, **{LIMITS[path]: 200}, stream=stream)
    (request,) = agent.engine.submitted
    assert agent.engine.turns == [NoteTurn(request.id, calls_tools=True)]


@pytest.mark.parametrize("path", AGENTS)
def test_an_answer_whose_tools_may_not_be_called_is_told_without_calls(
    agent: Served, tokenizer: TextTokenizer, path: str
) -> None:
    agent.engine.script = says(CALL, tokenizer)
    choice: object = {"type": "none"} if path == MESSAGES else "none"
    ask(agent, path, **with_tools(path), **{LIMITS[path]: 90}, tool_choice=choice)
    (request,) = agent.engine.submitted
    assert agent.engine.turns == [NoteTurn(request.id, calls_tools=False)]


def test_an_answer_that_is_cancelled_is_not_told(agent: Served) -> None:
    hold_after_first_token(agent)
    asked = {**BASE[RESPONSES], **with_tools(RESPONSES), "max_output_tokens": 50}
    try:
        begun = agent.client.post(RESPONSES, json=asked | {"background": True}).json()
        path = f"{RESPONSES}/{begun['id']}"
        assert eventually(lambda: agent.client.get(path).json()["status"] == "in_progress")
        assert agent.client.post(f"{path}/cancel").json()["status"] == "cancelled"
    finally:
        agent.do(agent.engine.may_step.set)
    assert agent.engine.turns == []


@pytest.mark.parametrize(("path", "name"), ENDPOINTS.items())
def test_the_engine_knows_the_api(agent: Served, path: str, name: str) -> None:
    ask(agent, path)
    (request,) = agent.engine.submitted
    assert (request.endpoint, request.retention_s) == (name, None)


@given(
    path=st.sampled_from([CHAT, RESPONSES]),
    key=st.none() | st.text(max_size=40),
    user=st.none() | st.text(max_size=40),
)
@cases(40)
def test_the_key_names_the_conversation_else_the_user(
    module_server: Served, path: str, key: str | None, user: str | None
) -> None:
    store = {"store": False} if path == RESPONSES else {}
    reply = ask(module_server, path, prompt_cache_key=key, user=user, **store)
    assert module_server.engine.submitted[-1].session == (key or user or "")
    assert "x-quire-warnings" not in reply.headers
    if path == RESPONSES:
        assert (reply.json()["prompt_cache_key"], reply.json()["user"]) == (key, user)


def test_stored_responses_are_one_conversation_with_those_before(agent: Served) -> None:
    """It has the name of the first, until one brings a key."""
    first = ask(agent, RESPONSES, user="me").json()["id"]
    second = ask(agent, RESPONSES, previous_response_id=first).json()["id"]
    other = ask(agent, RESPONSES, previous_response_id=first).json()["id"]
    keyed = ask(agent, RESPONSES, previous_response_id=second, prompt_cache_key="k").json()["id"]
    ask(agent, RESPONSES, previous_response_id=keyed)
    ask(agent, RESPONSES, previous_response_id=other, store=False)
    names = [request.session for request in agent.engine.submitted]
    assert names == [first, first, first, "k", "k", first]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("name", ["prompt_cache_key", "user"])
@pytest.mark.parametrize("value", [7, "x" * 513])
def test_a_name_that_is_none_is_refused(
    served: Served, path: str, name: str, value: object
) -> None:
    reply = served.client.post(path, json={**BASE[path], name: value})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == name


POLICIES = {None: 0, "in_memory": 0, "in-memory": 0, "24h": 86400}
OPTIONS = {None: 0, "30m": 1800, "12h": 43200}
MOST_S = 40000.0


class Keeping(NamedTuple):
    """A server, and the seconds for which it keeps prompts at most."""

    served: Served
    most_s: float


@pytest.fixture(scope="module", params=[MOST_S, 0.0])
def keeping(request: pytest.FixtureRequest) -> Iterator[Keeping]:
    most: float = request.param
    with serving(replace(plain_config(), max_prompt_retention_s=most)) as served:
        yield Keeping(served, most)


@given(
    path=st.sampled_from([CHAT, RESPONSES]),
    policy=st.sampled_from([*POLICIES]),
    ttl=st.sampled_from([*OPTIONS]),
    of_part=st.sampled_from([*OPTIONS]),
    stream=st.booleans(),
)
@cases(50)
def test_the_longest_time_is_kept_within_the_limit(
    keeping: Keeping,
    path: str,
    policy: str | None,
    ttl: str | None,
    of_part: str | None,
    stream: bool,
) -> None:
    mark = {"mode": "explicit", "ttl": of_part}
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": mark}
    content = {"input": [{"role": "user", "content": [part]}]} if path == RESPONSES else {}
    fields = {"prompt_cache_retention": policy, "prompt_cache_options": {"ttl": ttl}}
    served, most = keeping
    reply = ask(served, path, **content, **fields, stream=stream)
    asked = max(POLICIES[policy], OPTIONS[ttl], OPTIONS[of_part] if content else 0)
    kept = served.engine.submitted[-1].retention_s
    assert kept == (min(asked, most) or None)
    warnings = reply.headers.get("x-quire-warnings", "")
    assert ("prompt_cache" in warnings) is (asked > most)


def test_a_shortened_time_is_said_by_the_field_and_the_seconds(served: Served) -> None:
    reply = ask(served, CHAT, prompt_cache_retention="24h")
    told = "prompt_cache_retention asks for 86400 s, and prompts are kept for at most 3600 s"
    assert reply.headers["x-quire-warnings"] == told
    assert served.engine.submitted[-1].retention_s == 3600


def test_options_are_echoed_and_what_is_not_done_is_said(served: Served) -> None:
    options = {"mode": "explicit", "ttl": "30m"}
    fields = {"prompt_cache_options": options, "prompt_cache_retention": "in_memory"}
    reply = ask(served, RESPONSES, **fields)
    assert reply.json() | fields == reply.json()
    assert "prompt_cache_options.mode" in reply.headers["x-quire-warnings"]
    reply = ask(served, CHAT, prompt_cache_options={"comparison_response_id": "resp-1"})
    assert "prompt_cache_options.comparison_response_id" in reply.headers["x-quire-warnings"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"mode": "x"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"prewarm": 0}}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"more": 1}}, "prompt_cache_options.more"),
    ],
)
def test_other_values_are_refused_by_their_path(
    served: Served, path: str, fields: dict[str, object], where: str
) -> None:
    reply = served.client.post(path, json={**BASE[path], **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == where


@pytest.mark.parametrize("mark", [{"mode": "implicit"}, {"mode": "explicit", "ttl": "5m"}, 7])
def test_a_mark_of_a_part_that_is_none_is_refused(served: Served, mark: object) -> None:
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": mark}
    asked = {"input": [{"role": "user", "content": [part]}]}
    reply = served.client.post(RESPONSES, json=asked)
    assert reply.status_code == 400
    where = "input[0].content[0].prompt_cache_breakpoint"
    assert reply.json()["error"]["param"].startswith(where)


def words(num: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "word " * num}]}


@pytest.mark.parametrize(("n", "num_words"), [(1, 1), (1, 40), (3, 40)])
def test_tokens_that_are_cached_now_are_told(served: Served, n: int, num_words: int) -> None:
    usage = ask(served, CHAT, **words(num_words), n=n).json()["usage"]
    num_full = usage["prompt_tokens"] // 16 * 16
    told = usage["prompt_tokens_details"]
    assert told["cached_tokens"] == 3
    assert told["cache_write_tokens"] == max(num_full - 3, 0)


def test_lines_of_batches_have_no_conversation(tmp_path: Path) -> None:
    config = replace(plain_config(), batch_dir=str(tmp_path))
    lines = [
        line("a", CHAT, **BASE[CHAT], **with_tools(CHAT), prompt_cache_key="k", user="me"),
        line("b", CHAT, **{**BASE[CHAT], **with_result(CHAT)}),
    ]
    with serving(config) as served:
        files = {"file": ("in.jsonl", encode(lines))}
        uploaded = served.client.post("/v1/files", data={"purpose": "batch"}, files=files).json()
        asked = {"input_file_id": uploaded["id"], "endpoint": CHAT, "completion_window": "24h"}
        begun = served.client.post("/v1/batches", json=asked).json()["id"]

        def num_completed() -> int:
            found = served.client.get(f"/v1/batches/{begun}").json()["request_counts"]
            return int(found["completed"])

        assert eventually(lambda: num_completed() == 2, 20)
        told = [(request.session, request.endpoint) for request in served.engine.submitted]
        assert told == [("", "chat")] * 2
        assert served.engine.turns == []
