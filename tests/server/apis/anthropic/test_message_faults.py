"""What is wrong with a request for a message is said in Anthropic's shape, of the client's own
fields."""

import json
from dataclasses import replace

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.reasons import Reason
from quire.server.apis.anthropic.inputs import parse_message
from quire.server.config import ApiKey
from quire.server.errors import RequestError
from quire.server.generation.parsed_input import TokenizedRequest
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.anthropic.test_messages import (
    ASKED,
    COUNT,
    MESSAGES,
    RESULT,
    TOOL,
    USE,
    text,
    turn,
)
from tests.server.scripted_engine import FACTS
from tests.server.served import BUNDLED, MODEL, Served, plain_config, serving

FORM = {"type": "json_schema", "schema": {"type": "object"}}
UNENFORCED = {
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True}},
}
WORDS = (
    *("type", "role", "content", "text", "id", "name", "input", "tool_use_id", "is_error"),
    *("cache_control", "citations", "thinking", "signature", "data", "input_schema", "caller"),
    *("tool_use", "tool_result", "user", "assistant", "system", "redacted_thinking", "custom"),
    *("tool_choice", "auto", "any", "tool", "ephemeral", "json_schema", "schema", "image"),
    *("document", "search_result", "server_tool_use", "tool_reference", "compaction", "source"),
    *("title", "context", "data", "edits", "clear_thinking_20251015", "keep", "bash_20250124"),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
WHOLE_BLOCKS = st.one_of(
    st.builds(text, st.text(max_size=3)),
    st.builds(lambda given: USE | {"input": given}, OBJECTS),
    st.builds(lambda said: RESULT | {"content": said}, st.none() | st.text(max_size=3)),
    st.builds(lambda said: {"type": "thinking", "thinking": said}, st.text(max_size=3)),
    st.just({"type": "redacted_thinking", "data": "x"}),
    st.builds(
        lambda source: {"type": "document", "source": source},
        VALUES | st.builds(lambda each: {"type": "content", "content": each}, VALUES),
    ),
    st.builds(lambda each: {"type": "search_result", "content": each}, VALUES),
    st.just({"type": "web_search_tool_result", "content": []}),
)
BLOCKS = WHOLE_BLOCKS | st.fixed_dictionaries(
    {"type": st.sampled_from(WORDS)}, optional={word: VALUES for word in WORDS[3:15]}
)
CONTENTS = VALUES | st.text() | st.lists(WHOLE_BLOCKS, max_size=4) | st.lists(BLOCKS, max_size=4)
ROLES = st.sampled_from(["user", "assistant", "system"])
TURNS = st.fixed_dictionaries({"role": ROLES, "content": CONTENTS})
FIELDS = {
    "system": CONTENTS,
    "tools": st.lists(VALUES | BLOCKS | st.just(TOOL), max_size=3),
    "tool_choice": VALUES | st.just({"type": "auto"}),
    "thinking": VALUES | st.just({"type": "adaptive"}),
    "output_config": VALUES | st.just({"effort": "low"}),
    "output_format": st.none() | VALUES,
    "context_management": VALUES | st.builds(lambda each: {"edits": [each]}, BLOCKS),
}


@given(st.fixed_dictionaries({"messages": st.lists(TURNS, max_size=4)}, optional=FIELDS))
@cases(200)
def test_nothing_that_is_sent_is_the_servers_fault(
    tokenizer: TextTokenizer, fields: dict[str, object]
) -> None:
    body = json.dumps({"max_tokens": 1, **fields}).encode()
    limits, source = InputLimits(FACTS, 1024, (MODEL,)), TokenizerSource(BUNDLED, None)
    context = InputContext(limits, tokenizer, source)
    try:
        read = parse_message(body, context)
    except RequestError as error:
        assert error.status == 400
        assert error.message
    else:
        assert isinstance(read, TokenizedRequest)


def test_numbers_that_are_not_finite_are_no_input(served: Served) -> None:
    """JSON has a word for those that are too large, and none for others."""
    said = json.dumps([ASKED, turn("assistant", USE | {"input": {"n": 0.5}}), turn("user", RESULT)])
    body = f'{{"messages": {said}, "max_tokens": 4}}'
    error = served.client.post(MESSAGES, content=body.replace("0.5", "1e999")).json()["error"]
    assert error["details"]["param"] == "messages[1].content[0].input"
    assert "not finite" in error["message"]
    error = served.client.post(MESSAGES, content=body.replace("0.5", "NaN")).json()["error"]
    assert error["details"]["error_code"] == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [ASKED] * 5000}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [turn("user")]}, "messages[0].content"),
        (
            {"messages": [turn("user", text("x"), {"type": "image", "source": {}})]},
            "messages[0].content[1].type",
        ),
        ({"messages": [turn("user", {"type": "document"})]}, "messages[0].content[0].source"),
        ({"messages": [turn("user", {"type": "text"})]}, "messages[0].content[0].text"),
        (
            {"messages": [turn("user", text("x") | {"cache_control": {"type": "y"}})]},
            "messages[0].content[0].cache_control.type",
        ),
        ({"messages": [turn("user", USE)]}, "messages[0].content[0].type"),
        ({"messages": [turn("assistant", RESULT)]}, "messages[0].content[0].type"),
        ({"messages": [turn("assistant", USE | {"input": "{}"})]}, "messages[0].content[0].input"),
        (
            {"messages": [turn("assistant", USE | {"name": ""}), turn("user", RESULT)]},
            "messages[0].content[0].name",
        ),
        ({"messages": [turn("assistant", USE)]}, "messages[0]"),
        ({"messages": [turn("user", text("x"), RESULT)]}, "messages[0].content[1].tool_use_id"),
        ({"messages": [turn("user", RESULT | {"is_error": 1})]}, "messages[0].content[0].is_error"),
        (
            {"messages": [turn("user", RESULT | {"content": [{"type": "image"}]})]},
            "messages[0].content[0].content[0].type",
        ),
        ({"messages": [ASKED | {"content": "word " * 5000}]}, "messages"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 3}, "system"),
        ({"tools": [{"type": "crystal_ball_20250305", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": 3, "name": "x"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"defer_loading": 1}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"allowed_callers": "direct"}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL | {"cache_control": {}}]}, "tools[0].cache_control.type"),
        ({"tools": [{"name": "find"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        (
            {"tools": [TOOL | {"input_schema": UNENFORCED, "strict": True}]},
            "tools[0].input_schema.properties.a.uniqueItems",
        ),
        ({"tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 3}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": 3}}, "output_format.schema"),
        ({"output_format": {}}, "output_format.type"),
        ({"output_format": FORM, "output_config": {"format": FORM}}, "output_format"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"temperature": 3}, "temperature"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        (
            {"context_management": {"edits": [{"type": "burn_everything"}]}},
            "context_management.edits[0].type",
        ),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_a_fault_is_named_as_the_client_wrote_it(
    served: Served, fields: dict[str, object], param: str
) -> None:
    asked = {"messages": [ASKED], "max_tokens": 4, **fields}
    reply = served.client.post(MESSAGES, json=asked)
    assert reply.status_code == 400, reply.text
    body = reply.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["request_id"]) == ("error", reply.headers["request-id"])
    error = body["error"]
    assert (error["type"], error["details"]["param"]) == ("invalid_request_error", param)
    for word in ("function", "tool_call", "response_format", "reasoning_effort"):
        assert word not in error["message"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [ASKED] * 100}, "prompt is too long: "),
        ({"messages": [ASKED | {"content": "x" * 100_000}]}, "prompt is too long: at least "),
    ],
)
def test_what_is_too_long_is_said_in_the_words_that_agents_look_for(
    served: Served, fields: dict[str, object], said: str
) -> None:
    asked = {"messages": [ASKED], "max_tokens": 4, **fields}
    error = served.client.post(MESSAGES, json=asked).json()["error"]
    assert said in error["message"]
    assert "256" in error["message"]
    assert error["details"]["error_code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("reason", "status", "raised"),
    [
        (Reason.QUEUE_FULL, 503, anthropic.ServiceUnavailableError),
        (Reason.OVER_SHARE, 429, anthropic.RateLimitError),
    ],
)
def test_a_full_server_says_when_to_come_again(
    served: Served, reason: Reason, status: int, raised: type[anthropic.APIStatusError]
) -> None:
    kind = {503: "overloaded_error", 429: "rate_limit_error"}[status]
    served.engine.refuses = reason
    reply = served.client.post(MESSAGES, json={"messages": [ASKED], "max_tokens": 1})
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)
    assert int(reply.headers["retry-after"]) > 0
    with (
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client,
        pytest.raises(raised) as caught,
    ):
        client.messages.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=1
        )
    assert caught.value.type == kind


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (MESSAGES, {"model": "x", "messages": [ASKED], "max_tokens": 1}, 404, "not_found_error"),
        (COUNT, {"model": "x", "messages": [ASKED]}, 404, "not_found_error"),
        (f"{MESSAGES}/batches", {}, 404, "not_found_error"),
        (MESSAGES, None, 405, "invalid_request_error"),
    ],
)
def test_errors_of_its_paths_have_its_shape(
    served: Served, path: str, body: object, status: int, kind: str
) -> None:
    reply = served.client.request("POST" if body is not None else "GET", path, json=body)
    error = reply.json()
    assert (reply.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]


def test_keys_and_sizes_are_refused_in_its_shape() -> None:
    config = replace(
        plain_config(), api_keys=(ApiKey("alpha"), ApiKey("beta")), max_body_bytes=5000
    )
    asked = {"messages": [ASKED], "max_tokens": 1}
    with serving(config) as served:

        def status(body: object, **headers: str) -> tuple[int, object]:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            reply = served.client.post(MESSAGES, json=body, headers=named)
            return reply.status_code, reply.json().get("error", {}).get("type")

        assert status(asked) == (401, "authentication_error")
        assert status(asked, x_api_key="alpha") == (200, None)
        assert status(asked, authorization="Bearer alpha") == (200, None)
        assert status(asked, authorization="Bearer alpha", x_api_key="alpha") == (200, None)
        assert status(asked, authorization="Bearer alpha", x_api_key="beta") == (
            401,
            "authentication_error",
        )
        large = asked | {"system": "x" * 6000}
        assert status(large, x_api_key="alpha") == (413, "request_too_large")
