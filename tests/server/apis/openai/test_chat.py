"""`/v1/chat/completions`, whole answers: templates, content parts, log probabilities, limits."""

import json

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.scripted_engine import FACTS
from tests.server.served import MODEL, Served

HELLO = [{"role": "user", "content": "Hello there"}]


def prompt_text(served: Served, tokenizer: TextTokenizer) -> str:
    return tokenizer.decode(served.engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


def test_answer_has_openai_shape(served: Served) -> None:
    body = served.chat(model=MODEL, messages=HELLO, max_tokens=3).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 3


def test_template_is_applied_with_one_beginning(served: Served, tokenizer: TextTokenizer) -> None:
    served.chat(messages=HELLO, max_tokens=1)
    text = "<|endoftext|><|user|>Hello there<|end|><|assistant|>"
    assert prompt_text(served, tokenizer) == text
    assert served.engine.submitted[-1].prompt_token_ids.count(tokenizer.bos_token_id or 0) == 1


def test_parts_of_text_are_joined(served: Served, tokenizer: TextTokenizer) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    served.chat(messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert "Hello\nthere" in prompt_text(served, tokenizer)


def test_developer_is_the_system(served: Served, tokenizer: TextTokenizer) -> None:
    served.chat(messages=[{"role": "developer", "content": "Be brief"}, *HELLO], max_tokens=1)
    assert "<|system|>Be brief<|end|>" in prompt_text(served, tokenizer)


def test_final_message_is_continued(served: Served, tokenizer: TextTokenizer) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Good morrow, my"}]
    served.chat(messages=messages, continue_final_message=True, max_tokens=1)
    assert prompt_text(served, tokenizer).endswith("<|assistant|>Good morrow, my")


def test_generation_prompt_can_be_left_out(served: Served, tokenizer: TextTokenizer) -> None:
    served.chat(messages=HELLO, add_generation_prompt=False, max_tokens=1)
    assert prompt_text(served, tokenizer).endswith("<|end|>")


def test_without_limit_the_context_is_the_limit(served: Served) -> None:
    body = served.chat(messages=HELLO).json()
    usage = body["usage"]
    assert usage["total_tokens"] == FACTS.max_model_len
    assert body["choices"][0]["finish_reason"] == "length"


def test_both_names_of_the_limit(served: Served) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        body = served.chat(**{"messages": HELLO, field: 5}).json()
        assert body["usage"]["completion_tokens"] == 5
    reply = served.chat(messages=HELLO, max_tokens=5, max_completion_tokens=6)
    assert reply.json()["error"]["param"] == "max_tokens"


def test_logprobs_have_bytes_and_top(served: Served, tokenizer: TextTokenizer) -> None:
    body = served.chat(messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=2).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for entry in content:
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -1.5]
    plain = served.chat(messages=HELLO, max_tokens=1, logprobs=True).json()
    assert plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": "x", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ],
)
def test_messages_that_cannot_be_used(
    served: Served, messages: list[dict[str, object]], param: str
) -> None:
    reply = served.chat(messages=messages)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_continuing_excludes_a_generation_prompt(served: Served) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I"}]
    reply = served.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert reply.json()["error"]["param"] == "continue_final_message"
    reply = served.chat(messages=HELLO, continue_final_message=True)
    assert reply.json()["error"]["param"] == "continue_final_message"
    reply = served.chat(messages=HELLO, echo=True)
    assert reply.json()["error"]["param"] == "echo"


@pytest.mark.parametrize("field", ["tool_calls", "function_call"])
def test_a_message_with_calls_is_not_continued(served: Served, field: str) -> None:
    """The calls would be lost, since what is continued is the text."""
    called = {"name": "find", "arguments": "{}"}
    calls = {
        "tool_calls": [{"id": "call_1", "type": "function", "function": called}],
        "function_call": called,
    }
    messages = [*HELLO, {"role": "assistant", "content": "I", field: calls[field]}]
    older = {"functions": [{"name": "find"}]} if field == "function_call" else {}
    reply = served.chat(messages=messages, continue_final_message=True, **older)
    param = f"messages[1].{field}"
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_is_the_message_that_is_continued(served: Served, stream: bool) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Good morrow, "}]
    fields = {"messages": messages, "continue_final_message": True, "max_tokens": 2}
    scores: dict[str, object] = {} if stream else {"prompt_logprobs": 0, "logprobs": True}

    def said(**more: object) -> str:
        reply = served.chat(**fields, **scores, **more, stream=stream)
        if not stream:
            choice = reply.json()["choices"][0]
            assert len(choice["logprobs"]["content"]) == 2
            return str(choice["message"]["content"])
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        return "".join(json.loads(line)["choices"][0]["delta"]["content"] for line in lines)

    assert said(echo=True) == "Good morrow, " + said()


@pytest.mark.parametrize(
    ("name", "value"),
    [("messages", []), ("add_generation_prompt", False), ("continue_final_message", True)],
)
def test_template_kwargs_do_not_stand_in_for_fields(
    served: Served, name: str, value: object
) -> None:
    error = served.chat(messages=HELLO, chat_template_kwargs={name: value}).json()["error"]
    assert error["param"] == f"chat_template_kwargs.{name}"
    assert f"use the field '{name}'" in error["message"]


def test_template_kwargs_that_the_template_does_not_read_are_told(served: Served) -> None:
    kwargs = {"bos_token": "", "enable_thinking": False, "a\r\nb: é": 1}
    reply = served.chat(messages=HELLO, max_tokens=1, chat_template_kwargs=kwargs)
    assert reply.status_code == 200
    told = reply.headers["x-quire-warnings"]
    assert told.endswith(r"chat_template_kwargs: 'a\r\nb: \xe9', 'enable_thinking'")
    reply = served.chat(messages=HELLO, max_tokens=1, chat_template_kwargs={"bos_token": ""})
    assert "x-quire-warnings" not in reply.headers


def test_an_answer_can_be_sent_back_as_it_came(served: Served) -> None:
    said = {"role": "user", "content": "Who art thou?"}
    answer = served.chat(messages=[said], max_tokens=3).json()["choices"][0]["message"]
    more: dict[str, object] = {"tool_calls": None, "function_call": None, "annotations": []}
    for back in (answer, answer | more, {"role": "assistant", "content": None}):
        assert served.chat(messages=[said, back, said], max_tokens=3).status_code == 200


@pytest.mark.parametrize("nothing", ["", [], {}, None], ids=repr)
def test_empty_fields_of_an_answer_ask_for_nothing(served: Served, nothing: object) -> None:
    said = {"role": "user", "content": "Who art thou?"}
    names = ("reasoning_content", "reasoning", "refusal", "audio", "tool_calls", "function_call")
    answer = {"role": "assistant", "content": "A king"} | dict.fromkeys(names, nothing)
    assert served.chat(messages=[said, answer, said], max_tokens=1).status_code == 200


@pytest.mark.parametrize("something", ["a", [{}], {"id": "a"}, 0, False], ids=repr)
def test_audio_of_an_answer_is_left_out_and_said(served: Served, something: object) -> None:
    said = {"role": "user", "content": "Who art thou?"}
    answer = {"role": "assistant", "content": "A king", "audio": something}
    reply = served.chat(messages=[said, answer, said], max_tokens=1)
    assert reply.headers["x-quire-ignored"] == "messages[1].audio"


def test_the_limit_at_fault_is_named_as_it_was_sent(served: Served) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        reply = served.chat(messages=[{"role": "user", "content": "x"}], **{field: 10**6})
        assert reply.json()["error"]["param"] == field
