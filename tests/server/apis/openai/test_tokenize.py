"""`/tokenize` and `/detokenize`: what a prompt's tokens are, and what tokens say."""

import pytest

from quire.server.generation.prompts import MIN_COUNTED_CHARS
from tests.server.scripted_engine import FACTS
from tests.server.served import MODEL, Served

HELLO = {"role": "user", "content": "Hello there"}
ANSWER = {"role": "assistant", "content": "Good morrow, my"}


def test_tokenize_and_back(served: Served) -> None:
    body = served.client.post(
        "/tokenize", json={"prompt": "sweet prince", "return_token_strs": True}
    ).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert body["max_model_len"] == FACTS.max_model_len
    back = served.client.post("/detokenize", json={"tokens": body["tokens"]}).json()
    assert back["prompt"].endswith("sweet prince")
    reply = served.client.post("/detokenize", json={"tokens": [5000]})
    assert reply.json()["error"]["param"] == "tokens[0]"


def test_no_text_is_no_tokens_and_back(served: Served) -> None:
    asked = {"prompt": "", "add_special_tokens": False}
    assert served.client.post("/tokenize", json=asked).json()["tokens"] == []
    assert served.client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [HELLO]},
        {"messages": [HELLO], "add_generation_prompt": False},
        {"messages": [HELLO, ANSWER], "continue_final_message": True},
        {"messages": [HELLO], "chat_template_kwargs": {"bos_token": ""}},
        {"messages": [HELLO], "add_special_tokens": True},
    ],
    ids=str,
)
def test_a_conversation_has_the_tokens_of_its_prompt(
    served: Served, fields: dict[str, object]
) -> None:
    served.chat(**fields, max_tokens=1)
    body = served.client.post(
        "/tokenize", json={**fields, "model": MODEL, "return_token_strs": True}
    ).json()
    assert tuple(body["tokens"]) == served.engine.submitted[-1].prompt_token_ids
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])


def test_a_conversation_that_would_not_fit_is_counted(served: Served) -> None:
    long = {"role": "user", "content": "word " * 5000}
    assert served.client.post("/tokenize", json={"messages": [long]}).json()["count"] > 5000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [HELLO], "prompt": "x"}, "prompt"),
        ({"messages": [HELLO], "temperature": 0}, "temperature"),
        ({"messages": [HELLO], "continue_final_message": True}, "continue_final_message"),
        (
            {"messages": [HELLO], "chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages",
        ),
        ({"messages": [HELLO], "model": "nope"}, "model"),
        ({"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ({}, "prompt"),
    ],
    ids=str,
)
def test_what_cannot_be_tokenized_is_named(
    served: Served, fields: dict[str, object], param: str
) -> None:
    reply = served.client.post("/tokenize", json=fields)
    assert reply.json()["error"]["param"] == param


def test_template_kwargs_that_are_not_read_are_told(served: Served) -> None:
    asked = {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": False}}
    reply = served.client.post("/tokenize", json=asked)
    assert "'enable_thinking'" in reply.headers["x-quire-warnings"]


def test_a_text_that_cannot_fit_by_far_is_not_tokenized(served: Served) -> None:
    text = "word " * (MIN_COUNTED_CHARS // 5 + 1)
    error = served.client.post("/tokenize", json={"prompt": text}).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    counted = served.client.post("/tokenize", json={"prompt": text[:MIN_COUNTED_CHARS]})
    assert counted.json()["count"] > MIN_COUNTED_CHARS // 5
