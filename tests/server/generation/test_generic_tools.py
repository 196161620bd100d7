"""Tools of a model whose chat template has no place for them, in all three APIs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import httpx
import msgspec
import pytest

from quire.server.config import ServerConfig
from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_streaming import chunks
from tests.server.apis.openai.test_tools import CALLED, HELLO, RESULT, TOOL, function, says
from tests.server.grammars.matching import accepts
from tests.server.served import BUNDLED, Served, eventually, plain_config, serving, with_model

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CALL = '[{"name": "find", "arguments": {"n": 7}}]'
NOW = '[{"name": "now", "arguments": {}}]'
STRICT = function(**{**TOOL["function"], "strict": True})  # type: ignore[dict-item]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
MESSAGES_TOOL = {"name": "find", "input_schema": SCHEMA}


def folder_with(template: str, at: Path) -> str:
    folder = at / "model"
    copytree(BUNDLED, folder)
    (folder / "chat_template.jinja").write_text(template)
    return str(folder)


@contextmanager
def roomy(config: ServerConfig) -> Iterator[Served]:
    """A server whose context has room for descriptions of tools in the tokens of a small model."""
    with serving(config, loaded=False) as served:
        facts = served.engine.ready_facts
        memory = msgspec.structs.replace(facts.memory, max_model_len_fits=4096)
        served.engine.ready_facts = msgspec.structs.replace(
            facts, max_model_len=4096, memory=memory
        )
        served.do(served.engine.starts.set)
        assert eventually(lambda: served.client.get("/readyz").status_code == 200)
        yield served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with roomy(plain_config(folder_with(TEMPLATE, tmp_path_factory.mktemp("plain")))) as served:
        yield served


@pytest.fixture
def served(server: Served) -> Served:
    server.engine.submitted.clear()
    return server


def test_models_name_the_format(served: Served) -> None:
    (card, _) = served.client.get("/v1/models").json()["data"]
    assert card["capabilities"]["tools"] is True
    assert card["capabilities"]["tool_format"] == "generic"


@pytest.mark.parametrize(
    ("said", "num_calls"),
    [
        (CALL, 1),
        (CALL[1:-1], 1),
        (CALL.replace("arguments", "parameters"), 1),
        (f"```json\n{CALL}\n```", 1),
        (f"```\n{CALL[1:-1]}\n```\n", 1),
        (f"{CALL[:-1]}, {CALL[1:]}", 2),
        ("Seven.", 0),
        (f"Say {CALL}", 0),
        (f"```python\n{CALL}```", 0),
        (f"```json```\n{CALL}", 0),
        ('{"n": 7}', 0),
    ],
)
def test_a_model_may_call_or_answer(
    served: Served, tokenizer: TextTokenizer, said: str, num_calls: int
) -> None:
    served.engine.script = says(said, tokenizer)
    (choice,) = served.chat(messages=HELLO, tools=[TOOL]).json()["choices"]
    content = None if num_calls else said
    finish_reason = "tool_calls" if num_calls else "stop"
    assert (choice["finish_reason"], choice["message"]["content"]) == (finish_reason, content)
    made = choice["message"].get("tool_calls") or []
    assert [json.loads(call["function"]["arguments"]) for call in made] == [{"n": 7}] * num_calls
    assert served.engine.submitted[-1].sampling.grammar == ""
    parts = [
        each["choices"][0]["delta"]  # type: ignore[index]
        for each in chunks(served.chat(messages=HELLO, tools=[TOOL], stream=True))
    ]
    assert "".join(each.get("content") or "" for each in parts) == (content or "")
    streamed = [call["function"] for each in parts for call in each.get("tool_calls") or []]
    joined = "".join(each["arguments"] for each in streamed)
    assert joined == "".join(call["function"]["arguments"] for call in made)


def test_the_prompt_describes_tools_and_shows_calls_and_results(
    served: Served, tokenizer: TextTokenizer
) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    served.chat(messages=[*HELLO, said, RESULT], tools=[TOOL], max_tokens=1)
    text = prompt_text(served, tokenizer)
    assert text.startswith("<system>") and '{"name": "find", "description": ""' in text
    shown = '<assistant>[{"name": "find", "arguments": {}}]<user>Result of find:\nfound'
    assert text.endswith(shown)
    served.chat(messages=[*HELLO, said, RESULT], tools=[TOOL], tool_choice="none", max_tokens=1)
    assert prompt_text(served, tokenizer) == f"<user>Hi{shown}"


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        (
            {"tool_choice": "required"},
            (CALL, NOW, f"{CALL[:-1]}, {NOW[1:]}"),
            ("Hi", "", CALL.replace("7", '"7"'), f"Hi {CALL}"),
        ),
        ({"tool_choice": function(name="now")}, (NOW,), (CALL, f"{NOW[:-1]}, {NOW[1:]}", "Hi")),
        (
            {"tools": [STRICT, function(name="now")]},
            (CALL, "Hi", f"Hi {CALL}", f"```json\n{CALL}\n```", "```python\n{}```", ""),
            (CALL.replace("7", '"7"'), f"```json\n{CALL.replace('7', 'true')}\n```", "{}"),
        ),
    ],
)
def test_calls_are_enforced_where_they_must_be(
    served: Served, fields: dict[str, object], right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    body = {"messages": HELLO, "tools": [TOOL, function(name="now")], "max_tokens": 1, **fields}
    assert served.chat(**body).status_code == 200
    grammar = served.engine.submitted[-1].sampling.grammar
    assert [text for text in right if not accepts(grammar, text)] == []
    assert [text for text in wrong if accepts(grammar, text)] == []


@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_calls_and_go_on_from_them(
    served: Served, tokenizer: TextTokenizer, stream: bool
) -> None:
    served.engine.script = says(CALL, tokenizer)
    tool = {"type": "function", "name": "find", "parameters": SCHEMA}
    reply = served.client.post(
        "/v1/responses", json={"input": "Hi", "tools": [tool], "stream": stream}
    )
    body = last_event(reply)["response"] if stream else reply.json()
    (item,) = body["output"]
    assert (item["name"], json.loads(item["arguments"])) == ("find", {"n": 7})
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "found"}
    after = {"input": [result], "previous_response_id": body["id"], "max_output_tokens": 1}
    assert served.client.post("/v1/responses", json=after).status_code == 200
    assert prompt_text(served, tokenizer).endswith(f"{CALL}<user>Result of find:\nfound")


def last_event(reply: httpx.Response) -> dict[str, dict[str, list[dict[str, str]]]]:
    *_, last = (line for line in reply.text.splitlines() if line.startswith("data: "))
    event: dict[str, dict[str, list[dict[str, str]]]] = json.loads(last.removeprefix("data: "))
    return event


@pytest.mark.parametrize("choice", [None, {"type": "any"}, {"type": "tool", "name": "find"}])
def test_messages_have_calls_and_go_on_from_them(
    served: Served, tokenizer: TextTokenizer, choice: object
) -> None:
    served.engine.script = says(CALL, tokenizer)
    fields = {"messages": HELLO, "tools": [MESSAGES_TOOL], "max_tokens": 40}
    chosen = {} if choice is None else {"tool_choice": choice}
    body = served.client.post("/v1/messages", json={**fields, **chosen}).json()
    (block,) = body["content"]
    assert (block["name"], block["input"]) == ("find", {"n": 7})
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "found"}
    turns = [
        *HELLO,
        {"role": "assistant", "content": body["content"]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    reply = served.client.post("/v1/messages", json={**fields, "messages": turns, "max_tokens": 1})
    assert reply.status_code == 200
    assert prompt_text(served, tokenizer).endswith(f"{CALL}<user>Result of find:\nfound\n\nSo?")


def test_a_server_without_a_parser_refuses_tools(tmp_path: Path) -> None:
    config = plain_config(folder_with(TEMPLATE, tmp_path))
    with roomy(with_model(config, tool_call_parser="none")) as served:
        error = served.chat(messages=HELLO, tools=[TOOL]).json()["error"]
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        (card, _) = served.client.get("/v1/models").json()["data"]
        assert card["capabilities"]["tools"] is False
        assert card["capabilities"]["tool_format"] is None


@pytest.mark.parametrize(
    ("template", "parser"),
    [("{{ tools }}" + TEMPLATE, "auto"), ("{{ tools }}{# <tool_call> #}" + TEMPLATE, "generic")],
)
def test_a_template_of_another_format_is_not_given_tools(
    tmp_path: Path, tokenizer: TextTokenizer, template: str, parser: str
) -> None:
    """Where its format is not known, or not wanted, the model would be told two ways to call."""
    config = with_model(plain_config(folder_with(template, tmp_path)), tool_call_parser=parser)
    with roomy(config) as served:
        served.engine.script = says(CALL, tokenizer)
        (choice,) = served.chat(messages=HELLO, tools=[TOOL]).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert prompt_text(served, tokenizer).startswith("None<system>")
