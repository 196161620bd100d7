"""Items of the input: each text of one that is taken is in the prompt once, all else is named."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.responses.items.item_fields import HOSTED_ITEMS
from quire.server.apis.responses.items.sealed_reasoning import sealed
from quire.server.errors import RequestError
from tests.profiles import cases
from tests.server.apis.responses.items import ASKED, Item, messages_of, read, texts_of

FOREIGN = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo"}
SHELL_CALL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_s",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": "/tmp"},
}


class Script:
    """Writes items, each with texts of its own: `texts` are those of all so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers = count()

    def _text(self) -> str:
        self.texts.append(f"text-{next(self._numbers)}.")
        return self.texts[-1]

    def user(self) -> Iterator[Item]:
        yield {"role": "user", "content": [{"type": "input_text", "text": self._text()}]}

    def developer(self) -> Iterator[Item]:
        yield {"type": "message", "role": "developer", "content": self._text()}

    def summary(self) -> Iterator[Item]:
        part = {"type": "input_text", "text": self._text()}
        yield {"type": "compaction_summary", "content": [part]}

    def agent(self) -> Iterator[Item]:
        author = self._text()
        content = [{"type": "input_text", "text": self._text()}]
        yield {"type": "agent_message", "author": author, "recipient": "/root", "content": content}

    def assistant(self) -> Iterator[Item]:
        part = {"type": "output_text", "text": self._text(), "annotations": [], "logprobs": []}
        yield {"type": "message", "role": "assistant", "id": "msg-1", "content": [part]}

    def reasoning(self) -> Iterator[Item]:
        text = self._text()
        yield {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}],
            "encrypted_content": sealed(text),
        }
        yield from self.assistant()

    def sealed_reasoning(self) -> Iterator[Item]:
        content = sealed(self._text())
        yield {"type": "reasoning", "id": "rs-1", "summary": [], "encrypted_content": content}
        yield from self.assistant()

    def no_reasoning(self) -> Iterator[Item]:
        yield {"type": "reasoning", "id": "rs-1", "summary": [], "content": None}
        yield from self.assistant()

    def function(self) -> Iterator[Item]:
        call_id = f"call-{next(self._numbers)}"
        call = {"type": "function_call", "call_id": call_id, "name": self._text()}
        yield {**call, "arguments": f'{{"a": "{self._text()}"}}', "status": "completed"}
        yield {"type": "function_call_output", "call_id": call_id, "output": self._text()}

    def custom(self) -> Iterator[Item]:
        call_id = f"call-{next(self._numbers)}"
        call = {"type": "custom_tool_call", "call_id": call_id, "name": self._text()}
        yield {**call, "input": self._text()}
        output = [{"type": "input_text", "text": self._text()}]
        yield {"type": "custom_tool_call_output", "call_id": call_id, "output": output}

    def shell(self) -> Iterator[Item]:
        number = next(self._numbers)
        action = {"type": "exec", "command": [self._text()], "env": {}}
        call = {"id": f"lsh-{number}", "call_id": f"call-{number}", "action": action}
        yield {"type": "local_shell_call", "status": "completed", **call}
        result = {"id": f"lsh-{number}", "output": self._text()}
        yield {"type": "local_shell_call_output", **result}

    def hosted(self) -> Iterator[Item]:
        yield {"type": "web_search_call", "id": "ws-1", "status": "completed"}


TURNS = st.lists(
    st.sampled_from([name for name in vars(Script) if not name.startswith("_")]), max_size=12
)


@given(TURNS)
@cases(200)
def test_each_text_of_an_item_is_in_the_prompt_once_and_in_order(kinds: list[str]) -> None:
    script = Script()
    items = [item for kind in ("user", *kinds) for item in getattr(script, kind)()]
    chat = read({"input": items})
    told = "\n".join(texts_of(chat.messages))
    assert [told.count(text) for text in script.texts] == [1] * len(script.texts)
    places = [told.index(text) for text in script.texts]
    assert places == sorted(places)
    left_out = [f"input[{i}]" for i, item in enumerate(items) if item.get("type") in HOSTED_ITEMS]
    assert [*chat.ignored] == left_out


def test_a_text_could_be_missed() -> None:
    chat = read({"input": [ASKED, {"type": "web_search_call", "query": "text-0."}]})
    assert "text-0." not in "\n".join(texts_of(chat.messages))


@pytest.mark.parametrize("kind", sorted(HOSTED_ITEMS))
def test_what_hosted_tools_did_is_left_out_and_named(kind: str) -> None:
    items = [ASKED, {"type": kind, "id": "x", "call_id": "c", "output": "never"}]
    for refuses in (False, True):
        chat = read({"input": items}, refuses=refuses)
        assert (chat.ignored, len(chat.messages)) == (("input[1]",), 1)


def test_an_item_that_nobody_knows_is_left_out_or_refused() -> None:
    items = [ASKED, {"type": "ghost_call", "id": "x"}]
    assert read({"input": items}).ignored == ("input[1]",)
    with pytest.raises(RequestError) as caught:
        read({"input": items}, refuses=True)
    assert caught.value.param == "input[1].type"


def test_unknown_fields_are_left_out_or_refused() -> None:
    part = {"type": "input_text", "text": "Hi", "sparkle": 1}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "mood": 2}
    items = [{"role": "user", "content": [part], "tint": "red", "id": "x"}, call]
    paths = ("input[0].tint", "input[0].content[0].sparkle", "input[1].mood")
    assert read({"input": items}).ignored == paths
    with pytest.raises(RequestError) as caught:
        read({"input": items}, refuses=True)
    assert caught.value.param == paths[0]


def test_reasoning_that_only_another_server_reads_is_left_out() -> None:
    chat = read({"input": [ASKED, FOREIGN]})
    assert chat.ignored == ("input[1].encrypted_content",)
    assert [message.role for message in chat.messages] == ["user"]
    told = {**FOREIGN, "summary": [{"type": "summary_text", "text": "In short."}]}
    chat = read({"input": [ASKED, told]})
    assert chat.ignored == ("input[1].encrypted_content",)
    assert chat.messages[1].reasoning == "In short."


def test_a_part_that_only_another_server_reads_is_left_out() -> None:
    parts = [
        {"type": "encrypted_content", "encrypted_content": "gA"},
        {"type": "text", "text": "t"},
    ]
    chat = read({"input": [ASKED, {"role": "user", "content": parts}]})
    assert (chat.ignored, chat.messages[1].text) == (("input[1].content[0]",), "t")


@pytest.mark.parametrize("content", ["quire-reasoning-v1.%%%", "quire-reasoning-v1./w==", "x"])
def test_sealed_reasoning_that_was_changed_is_left_out(content: str) -> None:
    assert read({"input": [ASKED, {**FOREIGN, "encrypted_content": content}]}).ignored


def test_a_command_of_the_clients_shell_is_a_call() -> None:
    result = {"type": "local_shell_call_output", "id": "lsh_1", "output": "total 0"}
    function = {"type": "function_call_output", "call_id": "call_s", "output": "total 0"}
    for each in (result, function):
        _, turn, told = messages_of(ASKED, SHELL_CALL, each)
        calls = turn["tool_calls"]
        assert isinstance(calls, list)
        (call,) = calls
        arguments = {"command": ["ls", "-l"], "working_directory": "/tmp"}
        assert call["function"] == {"name": "local_shell", "arguments": arguments}
        assert (told["tool_call_id"], told["content"]) == (call["id"], "total 0")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "type"),
        ({"type": 3}, "type"),
        ({"type": "compaction", "encrypted_content": "gAAAA"}, "encrypted_content"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 3}, "input"),
        (
            {"type": "custom_tool_call", "call_id": "", "name": "f", "input": "x"},
            "call_id",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "namespace": 3},
            "namespace",
        ),
        ({**SHELL_CALL, "action": "ls"}, "action"),
        ({**SHELL_CALL, "action": {"command": "ls"}}, "action.command"),
        ({**FOREIGN, "encrypted_content": 3}, "encrypted_content"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "content[0].text"),
        (
            {"type": "custom_tool_call_output", "output": [{"type": "input_image"}]},
            "call_id",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]},
            "output[0].type",
        ),
        ({"type": "additional_tools", "tools": 3}, "tools"),
    ],
    ids=str,
)
def test_a_fault_of_an_item_is_named_by_its_path(item: Item, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read({"input": [ASKED, item]})
    assert caught.value.param == f"input[1].{param}"
