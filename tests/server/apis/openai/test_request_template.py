"""A chat template in a request: only where the server was told to, in a sandbox, and bounded."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from quire.server.http.endpoints import CHAT
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.served import Served, plain_config, serving

TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.content }}>{% endfor %}{{ mood }}"


@pytest.fixture(scope="module")
def trusting() -> Iterator[Served]:
    with serving(replace(plain_config(), trust_request_chat_template=True)) as served:
        yield served


def render(served: Served, template: str, **fields: object) -> dict[str, object]:
    """The prompt that the template makes."""
    fields = {**BASE[CHAT], "chat_template": template, **fields}
    reply = served.client.post(f"{CHAT}/render", json=fields)
    prompt: dict[str, object] = reply.json()["prompts"][0]
    return prompt


def tokens_of(prompt: dict[str, object]) -> list[int]:
    token_ids = prompt["token_ids"]
    assert isinstance(token_ids, list)
    return token_ids


def test_the_template_of_a_request_makes_its_prompt(trusting: Served) -> None:
    trusting.engine.submitted.clear()
    reply = trusting.chat(
        **BASE[CHAT], chat_template=TEMPLATE, chat_template_kwargs={"mood": "!", "unread": 1}
    )
    assert reply.status_code == 200, reply.text
    assert "unread" in reply.headers["x-quire-warnings"]
    prompt = render(trusting, TEMPLATE, chat_template_kwargs={"mood": "!"})
    assert prompt["text"] == "<|endoftext|><x>!"
    (request,) = trusting.engine.submitted
    assert request.prompt_token_ids == tuple(tokens_of(prompt))


@pytest.mark.parametrize("length", [10_000, 100_000])
def test_long_bodies_bring_templates_too(trusting: Served, length: int) -> None:
    body = json.dumps({**BASE[CHAT], "chat_template": TEMPLATE}).ljust(length)
    reply = trusting.client.post(f"{CHAT}/render", content=body)
    assert reply.json()["prompts"][0]["text"] == "<|endoftext|><x>"


def test_a_server_that_was_not_told_to_refuses_a_template(served: Served) -> None:
    error = error_of(served.chat(**BASE[CHAT], chat_template=TEMPLATE))
    assert (error["param"], error["code"]) == ("chat_template", "unsupported_parameter")
    assert "--trust-request-chat-template" in str(error["message"])


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ '(' * 5 ",
        f"{{{{ {'(' * 5000}1{')' * 5000} }}}}",
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('no') }}",
        "{{ 'x' * 2000000000 }}",
        "",
    ],
    ids=lambda each: each[:30],
)
def test_a_template_that_does_not_render_is_named(trusting: Served, template: str) -> None:
    reply = trusting.chat(**BASE[CHAT], chat_template=template)
    assert reply.status_code == 400, reply.text
    assert error_of(reply)["param"] == "chat_template"


def test_a_template_without_end_is_ended_and_holds_up_nobody(trusting: Served) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    began_s = time.monotonic()
    error = error_of(trusting.chat(**BASE[CHAT], chat_template=endless))
    assert error["param"] == "chat_template"
    assert "1 s" in str(error["message"])
    assert time.monotonic() - began_s < 30
    assert trusting.chat(**BASE[CHAT]).status_code == 200
    assert render(trusting, TEMPLATE)["text"] == "<|endoftext|><x>"
