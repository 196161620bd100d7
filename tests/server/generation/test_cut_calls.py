"""The beginning of a call that is cut before its name is known reaches no client, in any API, whole
or streamed: neither as text nor as a call."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_tools import HELLO, TOOL
from tests.server.generation.test_generic_tools import TEMPLATE, folder_with, roomy
from tests.server.scripted_engine import FACTS
from tests.server.served import BUNDLED, MODEL, Served, plain_config

FUNCTION: Any = {"type": "function", "name": "find", "parameters": {}, "strict": False}
MESSAGE_TOOL: Any = {"name": "find", "input_schema": {"type": "object"}}
CALL = '{"name": "find", "arguments": {"n": 7}}'
HEAD = '{"name": "fi'
NO_LIMIT = 200


class Cut(NamedTuple):
    """A server, the text that its model writes until the output is cut, and the whole calls in
    it."""

    served: Served
    text: str
    num_calls: int


@pytest.fixture(scope="module", params=["hermes", "generic"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Served]]:
    is_plain = request.param == "generic"
    folder = folder_with(TEMPLATE, tmp_path_factory.mktemp("plain")) if is_plain else BUNDLED
    with roomy(plain_config(folder)) as served:
        yield request.param, served


@pytest.fixture(params=["first", "second", "between"])
def cut(request: pytest.FixtureRequest, server: tuple[str, Served]) -> Cut:
    form, served = server
    if form == "generic":
        texts = {"first": f"[{HEAD}", "second": f"[{CALL}, {HEAD}", "between": f"[{CALL}, "}
    else:
        opens, whole = "<tool_call>", f"<tool_call>{CALL}</tool_call>\n"
        texts = {"first": opens + HEAD, "second": whole + opens + HEAD, "between": whole + "<tool"}
    return Cut(served, texts[request.param], int(request.param != "first"))


@pytest.fixture(params=["length", "stop string"])
def limit(request: pytest.FixtureRequest, cut: Cut, tokenizer: TextTokenizer) -> int:
    """The limit of an output that ends where the text does."""
    ids = tokenizer.encode(cut.text, add_special_tokens=False)
    more = tokenizer.encode("STOP me", add_special_tokens=False)
    cut.served.engine.script = lambda _: iter((*ids, *more, FACTS.eos_token_ids[0]))
    return len(ids) if request.param == "length" else NO_LIMIT


def test_a_chat_has_no_text_of_it(cut: Cut, limit: int) -> None:
    asked: Any = {"model": MODEL, "messages": HELLO, "tools": [TOOL], "max_tokens": limit}
    asked |= {"stop": ["STOP"], "tool_choice": "required"}
    with openai.OpenAI(base_url=f"{cut.served.url}/v1", api_key="none") as client:
        (whole,) = client.chat.completions.create(**asked).choices
        stream = client.chat.completions.create(**asked, stream=True)
        choices = [chunk.choices[0] for chunk in stream]
    reason = "stop" if limit == NO_LIMIT else "length"
    if reason == "stop" and cut.num_calls:
        reason = "tool_calls"
    assert (whole.finish_reason, choices[-1].finish_reason) == (reason, reason)
    assert not whole.message.content
    assert not any(each.delta.content for each in choices)
    assert len(whole.message.tool_calls or []) == cut.num_calls
    parts = [part for each in choices for part in each.delta.tool_calls or []]
    assert {part.index for part in parts} == {*range(cut.num_calls)}


def test_a_response_has_no_text_of_it(cut: Cut, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode(cut.text, add_special_tokens=False)
    limit = len(ids)
    cut.served.engine.script = lambda _: iter(ids)
    asked: Any = {"model": MODEL, "input": "Hi", "tools": [FUNCTION], "max_output_tokens": limit}
    asked |= {"tool_choice": "required"}
    with openai.OpenAI(base_url=f"{cut.served.url}/v1", api_key="none") as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            streamed: Any = list(stream)[-1]
    for response in (whole, streamed.response):
        calls = [each.status for each in response.output if each.type == "function_call"]
        assert calls == ["completed"] * cut.num_calls
        assert (response.status, response.output_text) == ("incomplete", "")


def test_a_message_has_no_text_of_it(cut: Cut, limit: int) -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    asked |= {"max_tokens": limit, "tools": [MESSAGE_TOOL], "tool_choice": {"type": "any"}}
    asked |= {"stop_sequences": ["STOP"]}
    with anthropic.Anthropic(base_url=cut.served.url, api_key="none") as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert [each.type for each in message.content] == ["tool_use"] * cut.num_calls
        assert message.stop_reason == ("stop_sequence" if limit == NO_LIMIT else "max_tokens")
