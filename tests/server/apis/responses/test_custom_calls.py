"""Calls of custom tools and of namespaces: what the model is told, what it writes, what comes."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_tools import says
from tests.server.apis.responses.test_stored import ask, prompt_of, refused
from tests.server.apis.responses.test_streaming import settled, told
from tests.server.generation.test_generic_tools import roomy
from tests.server.scripted_engine import repeat_prompt
from tests.server.served import MODEL, Served, plain_config, serving, with_model

RESPONSES = "/v1/responses"
PATCH = {"type": "custom", "name": "patch", "description": "Edits files."}
SPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
}
SEARCH = {"type": "web_search", "external_web_access": True}
TEXT = 'a "b"\n+ü\t\\n😀\n'


@pytest.fixture(scope="module")
def roomy_server() -> Iterator[Served]:
    """A server with a context for the descriptions of tools."""
    with roomy(plain_config()) as served:
        yield served


@pytest.fixture
def served(roomy_server: Served) -> Served:
    roomy_server.engine.script = repeat_prompt
    return roomy_server


def patched(text: str) -> str:
    return called("patch", {"input": text})


def called(name: str, arguments: object) -> str:
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def both(served: Served, **fields: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole response, and the events of the streamed one."""
    asked = {"input": "Hi", **fields}
    whole = served.client.post(RESPONSES, json=asked)
    assert whole.status_code == 200, whole.text
    return whole.json(), told(served.client.post(RESPONSES, json={**asked, "stream": True}))


def test_a_custom_call_is_text(served: Served, tokenizer: TextTokenizer) -> None:
    served.engine.script = says(f"So.\n{patched(TEXT)}", tokenizer)
    whole, stream = both(served, tools=[PATCH])
    assert settled("-x", stream[-1]["response"]) == settled("-x", whole)
    call = whole["output"][1]
    assert (call["type"], call["name"], call["status"]) == (
        "custom_tool_call",
        "patch",
        "completed",
    )
    assert call["input"] == TEXT
    assert call["id"].startswith("ctc-") and call["call_id"]
    of_call = [each for each in stream if each.get("output_index") == 1]
    kinds = [each["type"].removeprefix("response.") for each in of_call]
    deltas = [each["delta"] for each in of_call if "delta" in each]
    assert len(deltas) > 1 and "".join(deltas) == TEXT
    assert kinds == [
        "output_item.added",
        *["custom_tool_call_input.delta"] * len(deltas),
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert of_call[0]["item"]["input"] == "" and of_call[-2]["input"] == TEXT


def test_a_custom_call_that_breaks_off_is_incomplete(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(patched(TEXT)[:62], tokenizer)
    whole, stream = both(served, tools=[PATCH])
    (call,) = whole["output"]
    assert call["status"] == "incomplete"
    assert call["input"] and TEXT.startswith(call["input"])
    assert not [each for each in stream if each["type"].endswith("input.done")]
    assert stream[-2]["item"]["input"] == call["input"]


def test_the_function_of_a_namespace_comes_back_under_its_own_name(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(called("crm__find", {"n": 7}), tokenizer)
    whole, stream = both(served, tools=[SPACE])
    (call,) = whole["output"]
    assert (call["namespace"], call["name"], json.loads(call["arguments"])) == (
        "crm",
        "find",
        {"n": 7},
    )
    (done,) = [each for each in stream if each["type"].endswith("arguments.done")]
    assert done["name"] == "find"


def test_the_model_is_told_all_tools_but_hosted_ones(
    served: Served, tokenizer: TextTokenizer
) -> None:
    tools = [PATCH, SEARCH, SPACE]
    reply = served.client.post(RESPONSES, json={"input": "Hi", "tools": tools})
    assert reply.headers["x-quire-ignored"] == "tools[1]"
    assert reply.json()["tools"] == tools
    shown = prompt_text(served, tokenizer)
    for told_of in ("patch", "Edits files.", "crm__find", "Customers."):
        assert told_of in shown
    assert "web_search" not in shown


def test_what_comes_out_goes_in_again(served: Served, tokenizer: TextTokenizer) -> None:
    said = f"So.\n{patched('+ü')}{called('crm__find', {})}"
    served.engine.script = says(said, tokenizer)
    named = {"type": "custom", "name": "patch"}
    finds = {"type": "function", "name": "find"}
    tools = [named, {"type": "namespace", "name": "crm", "tools": [finds]}]
    shared: dict[str, object] = {"tools": tools, "max_output_tokens": 200}
    first = ask(served, "Hi", **shared)
    assert [item["type"] for item in first["output"]] == [
        "message",
        "custom_tool_call",
        "function_call",
    ]
    results = [
        {"type": f"{kind}_output", "call_id": item["call_id"], "output": "done"}
        for item in first["output"][1:]
        for kind in [item["type"]]
    ]
    shared["max_output_tokens"] = 1
    ask(served, results, previous_response_id=first["id"], **shared)
    chained = prompt_of(served)
    asked = {"role": "user", "content": "Hi"}
    ask(served, [asked, *first["output"], *results], store=False, **shared)
    assert prompt_of(served) == chained
    assert '{"input": "+ü"}' in prompt_text(served, tokenizer)


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Served]:
    """A server whose model reasons."""
    with serving(with_model(plain_config(), reasoning_parser="deepseek_r1")) as served:
        yield served


def test_sealed_reasoning_goes_in_again(reasoner: Served, tokenizer: TextTokenizer) -> None:
    reasoner.engine.script = says("<think>Hm, ü 😀.</think>Yes.", tokenizer)
    asked = {"input": "Hi", "include": ["reasoning.encrypted_content"], "max_output_tokens": 60}
    reply = reasoner.client.post(RESPONSES, json=asked)
    assert "x-quire-warnings" not in reply.headers
    first = reply.json()
    stream = told(reasoner.client.post(RESPONSES, json={**asked, "stream": True}))
    assert settled("-x", stream[-1]["response"]) == settled("-x", first)
    reasoning, message = first["output"]
    more = {"role": "user", "content": "Go on"}
    ask(reasoner, [more], previous_response_id=first["id"])
    chained = prompt_of(reasoner)
    bare = {**reasoning, "content": None}
    for each in (reasoning, bare, {**bare, "summary": [{"type": "summary_text", "text": "No."}]}):
        ask(reasoner, [{"role": "user", "content": "Hi"}, each, message, more], store=False)
        assert prompt_of(reasoner) == chained
    plain = ask(reasoner, "Hi", max_output_tokens=60)["output"][0]
    assert "encrypted_content" not in plain


def test_the_openai_client_reads_custom_calls(served: Served, tokenizer: TextTokenizer) -> None:
    served.engine.script = says(patched(TEXT), tokenizer)
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(
            model=MODEL,
            input="Hi",
            tools=[{"type": "custom", "name": "patch"}],
            stream=True,
        )
        events = [*stream]
    texts = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(texts) == TEXT and len(texts) > 1
    last = events[-1]
    assert last.type == "response.completed"
    (call,) = last.response.output
    assert call.type == "custom_tool_call"
    assert call.input == TEXT


def test_a_required_input_is_of_its_expression(served: Served) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{3}"}
    tool = {**PATCH, "format": form}
    asked = {"input": "Hi", "tools": [tool], "tool_choice": {"type": "custom", "name": "patch"}}
    reply = served.client.post(RESPONSES, json={**asked, "max_output_tokens": 1})
    assert reply.status_code == 200, reply.text
    assert "x-quire-ignored" not in reply.headers
    grammar = served.engine.submitted[-1].sampling.grammar
    assert grammar is not None and "[a-z]{3}" in grammar


@pytest.mark.parametrize("definition", ["start: unknown", "start: /(/", "}"])
def test_a_grammar_that_cannot_be_enforced_is_told_of(served: Served, definition: str) -> None:
    """The model writes calls as JSON, in whose strings a Lark grammar cannot be enforced."""
    form = {"type": "grammar", "syntax": "lark", "definition": definition}
    asked = {"input": "Hi", "tools": [{**PATCH, "format": form}], "max_output_tokens": 1}
    reply = served.client.post(RESPONSES, json=asked)
    assert reply.headers["x-quire-ignored"] == "tools[0].format"
    for choice in ("required", {"type": "custom", "name": "patch"}):
        reply = served.client.post(RESPONSES, json={**asked, "tool_choice": choice})
        assert refused(reply) == ("tools[0].format", "unsupported_parameter")


def test_a_grammar_in_lark_is_enforced_where_calls_are_text() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "+" /[a-z]+/'}
    asked = {"input": "Hi", "tools": [{**PATCH, "format": form}], "max_output_tokens": 1}
    with serving(with_model(plain_config(), tool_call_parser="qwen3_coder")) as served:
        for choice in ("auto", "required", {"type": "custom", "name": "patch"}):
            reply = served.client.post(RESPONSES, json={**asked, "tool_choice": choice})
            assert reply.status_code == 200, reply.text
            assert "x-quire-ignored" not in reply.headers
            grammar = served.engine.submitted[-1].sampling.grammar
            assert grammar is not None and 'start: "+" /[a-z]+/' in grammar
        for definition in ("start: unknown", "start: /(/", "}"):
            wrong = {**PATCH, "format": {**form, "definition": definition}}
            reply = served.client.post(RESPONSES, json={**asked, "tools": [wrong]})
            assert refused(reply)[0] == "tools[0].format.definition"


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
@cases(20)
def test_truncation_drops_whole_turns_until_the_prompt_fits(
    module_server: Served, num_words: list[int]
) -> None:
    """Each turn is a question and its answer; the last question has no answer yet."""
    served = module_server
    items: list[dict[str, str]] = []
    for number, words in enumerate(num_words):
        items.append({"role": "user", "content": f"q{number} " + "word " * words})
        items.append({"role": "assistant", "content": f"a{number} " + "word " * words})
    items.append({"role": "user", "content": "last?"})
    asked = {"instructions": "Be brief.", "max_output_tokens": 4}
    auto = served.client.post(RESPONSES, json={**asked, "input": items, "truncation": "auto"})
    assert auto.status_code == 200, auto.text
    assert auto.json()["truncation"] == "auto"
    prompt = prompt_of(served)
    fewest = next(
        (start, prompt_of(served))
        for start in range(0, len(items), 2)
        if served.client.post(RESPONSES, json={**asked, "input": items[start:]}).status_code == 200
    )
    assert prompt == fewest[1]
    warned = auto.headers.get("x-quire-warnings")
    last = f"input[{fewest[0] - 1}]"
    of = f"truncation dropped {fewest[0] // 2} of {len(num_words) + 1} turns"
    assert warned == (f"{of}, from input[0] to {last}" if fewest[0] else None)


def test_a_turn_that_is_too_long_alone_is_refused(module_server: Served) -> None:
    served = module_server
    items = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    items.append({"role": "user", "content": "word " * 400})
    asked = {"input": items, "truncation": "auto", "max_output_tokens": 4}
    reply = served.client.post(RESPONSES, json=asked)
    assert refused(reply) == ("input", "context_length_exceeded")
    asked = {"input": "Hi", "truncation": "auto", "max_output_tokens": 4000}
    reply = served.client.post(RESPONSES, json=asked)
    assert refused(reply) == ("max_output_tokens", "context_length_exceeded")
