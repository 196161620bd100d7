"""Bodies of the shape that Codex 0.171.0 sends, with texts of our own: no request is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_tools import says
from tests.server.apis.responses.test_streaming import told
from tests.server.generation.test_generic_tools import roomy
from tests.server.served import Served, plain_config

RESPONSES = "/v1/responses"
Body = dict[str, Any]


def function(name: str, *parameters: str) -> Body:
    properties = {each: {"type": "string", "description": "One."} for each in parameters}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    required = {"required": [*parameters[:1]]}
    tool = {"type": "function", "name": name, "description": "Does it.", "strict": False}
    return {**tool, "parameters": schema | required}


def text(role: str, *texts: str, **fields: object) -> Body:
    content = [{"type": "input_text", "text": each} for each in texts]
    return {"type": "message", "id": "msg_1", "role": role, "content": content, **fields}


AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Other agents.",
    "tools": [function("spawn_agent", "message"), function("wait_agent", "ids")],
}
SHARED: Body = {
    "stream": True,
    "tool_choice": "auto",
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a22842-2b6c-7bb2",
    "client_metadata": {"session_id": "01a22842-2b6c-7bb2", "x-codex-turn-metadata": "{}"},
}
CLASSIC: Body = {
    **SHARED,
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "tools": [
        function("exec_command", "cmd", "workdir"),
        function("view_image", "path"),
        AGENTS,
        function("get_goal"),
        {"type": "web_search", "external_web_access": True},
    ],
    "input": [
        text("developer", "You are an agent."),
        text("developer", "The sandbox is off.", "No approvals."),
        text("user", "<cwd>/home</cwd>"),
        text("user", "Say hello."),
    ],
}
SOURCE = "start: line | text\nline: /[^\\n]*/ NEWLINE text\ntext: /[\\s\\S]+/\nNEWLINE: /\\r?\\n/"
EXEC = {
    "type": "custom",
    "name": "exec",
    "description": "Runs a script.",
    "format": {"type": "grammar", "syntax": "lark", "definition": SOURCE},
}
CODE_MODE: Body = {
    **SHARED,
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "context": "all_turns"},
    "text": {"verbosity": "low"},
    "input": [
        {
            "type": "additional_tools",
            "id": "at_1",
            "role": "developer",
            "tools": [
                {
                    "type": "namespace",
                    "name": "functions",
                    "description": "Tools of your own.",
                    "tools": [EXEC, function("wait", "id")],
                },
                {**AGENTS, "name": "collaboration"},
            ],
        },
        *CLASSIC["input"],
    ],
}
SAID_BEFORE: list[Body] = [
    {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Let me see."}],
        "encrypted_content": "quire-reasoning-v1.TGV0IG1lIHNlZS4=",
    },
    {
        "type": "function_call",
        "status": "completed",
        "name": "exec_command",
        "arguments": '{"cmd": "echo hi"}',
        "call_id": "call_1",
    },
    {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "Output:\nhi\n"},
    {
        "type": "function_call",
        "status": "completed",
        "name": "spawn_agent",
        "namespace": "multi_agent_v1",
        "arguments": '{"message": "hi"}',
        "call_id": "call_2",
    },
    {
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_3",
        "name": "exec",
        "namespace": "functions",
        "input": "text(1+1)",
    },
    {"type": "function_call_output", "id": "fco_2", "call_id": "call_2", "output": '{"id":"x"}'},
    {
        "type": "custom_tool_call_output",
        "id": "ctco_1",
        "call_id": "call_3",
        "output": [{"type": "input_text", "text": "Done:"}, {"type": "input_text", "text": "2"}],
    },
    text("assistant", "Hello.", phase="final_answer"),
    text("user", "Again."),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with roomy(plain_config()) as served:
        yield served


@pytest.mark.parametrize(
    ("body", "ignored"),
    [(CLASSIC, "tools[4]"), (CODE_MODE, "input[0].tools[0].tools[0].format")],
    ids=["classic", "code mode"],
)
@pytest.mark.parametrize("later", [[], SAID_BEFORE], ids=["first turn", "later turn"])
def test_a_turn_is_taken(
    server: Served, tokenizer: TextTokenizer, body: Body, ignored: str, later: list[Body]
) -> None:
    server.engine.script = says("Hello.", tokenizer)
    reply = server.client.post(RESPONSES, json={**body, "input": [*body["input"], *later]})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-quire-ignored"] == ignored
    events = told(reply)
    assert events[-1]["type"] == "response.completed"
    shown = prompt_text(server, tokenizer)
    assert "web_search" not in shown
    for said in ("You are an agent.", "No approvals.", "spawn_agent", "Say hello."):
        assert said in shown
    assert ("text(1+1)" in shown) == bool(later)


def test_calls_come_back_as_codex_knows_them(server: Served, tokenizer: TextTokenizer) -> None:
    calls = [
        {"name": "exec", "arguments": {"input": "text(2+2)\n"}},
        {"name": "collaboration__spawn_agent", "arguments": {"message": "hi"}},
    ]
    written = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    server.engine.script = says(written, tokenizer)
    body = {**CODE_MODE, "parallel_tool_calls": True}
    done = told(server.client.post(RESPONSES, json=body))[-1]["response"]["output"]
    assert [(each["type"], each["namespace"], each["name"]) for each in done] == [
        ("custom_tool_call", "functions", "exec"),
        ("function_call", "collaboration", "spawn_agent"),
    ]
    assert done[0]["input"] == "text(2+2)\n"


def test_a_summary_that_is_asked_for_without_tools_is_taken(
    server: Served, tokenizer: TextTokenizer
) -> None:
    server.engine.script = says("They said hello.", tokenizer)
    body = {**CLASSIC, "tools": [], "parallel_tool_calls": False}
    assert server.client.post(RESPONSES, json=body).status_code == 200
