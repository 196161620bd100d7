"""Prompts are cut where a request asks for it, and the answer says by how much."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.server.http.endpoints import CHAT, COMPLETIONS
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.openai.test_errors import error_of
from tests.server.base_bodies import BASE
from tests.server.scripted_engine import FACTS
from tests.server.served import Served

WARNINGS = "x-quire-warnings"
LONG = "to be or not to be, that is the question. " * 60


@settings(cases(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_left_is_one_side_of_the_prompt(served: Served, data: st.DataObject) -> None:
    served.engine.submitted.clear()
    ids = data.draw(st.lists(st.integers(2, 2047), min_size=1, max_size=400))
    most = data.draw(st.integers(1, 250))
    side = data.draw(st.sampled_from([None, "left", "right"]))
    reply = served.complete(
        prompt=ids, max_tokens=1, truncate_prompt_tokens=most, truncation_side=side
    )
    assert reply.status_code == 200
    (request,) = served.engine.submitted
    left = ids[:most] if side == "right" else ids[-most:]
    assert request.prompt_token_ids == tuple(left)
    assert reply.json()["usage"]["prompt_tokens"] == len(left)
    num_cut = len(ids) - len(left)
    said = f"truncate_prompt_tokens cut {num_cut} prompt tokens" if num_cut else None
    assert reply.headers.get(WARNINGS) == said


def test_the_beginning_of_a_sequence_stays(served: Served, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("the queen and the king of the isles", add_special_tokens=True)
    bos = tokenizer.bos_token_id
    begun = ids if ids[0] == bos else (bos, *ids)
    served.complete(prompt=list(begun), max_tokens=1, truncate_prompt_tokens=3)
    (request,) = served.engine.submitted
    assert request.prompt_token_ids == (bos, *ids[-2:])


@pytest.mark.parametrize("max_tokens", [None, 0, 1, 100])
def test_what_fits_is_left_beside_the_output(served: Served, max_tokens: int | None) -> None:
    fields = {"max_tokens": max_tokens, "echo": max_tokens == 0}
    reply = served.complete(prompt=LONG, **fields)
    assert error_of(reply)["code"] == "context_length_exceeded"
    reply = served.complete(prompt=LONG, truncate_prompt_tokens=-1, **fields)
    assert reply.status_code == 200 and WARNINGS in reply.headers
    (request,) = served.engine.submitted
    room = max_tokens or (16 if max_tokens is None else 1)
    assert len(request.prompt_token_ids) == FACTS.max_model_len - room


def test_several_prompts_are_cut_each(served: Served) -> None:
    reply = served.complete(
        prompt=["a", [5, 6, 7, 8], [9, 8, 7]], max_tokens=1, truncate_prompt_tokens=2
    )
    assert reply.status_code == 400  # texts and ids are not mixed
    reply = served.complete(prompt=[[5], [5, 6, 7, 8], [9, 8, 7]], truncate_prompt_tokens=2)
    assert reply.headers[WARNINGS] == "truncate_prompt_tokens cut 3 prompt tokens of 2 prompts"


def test_an_echo_is_of_what_is_left(served: Served, tokenizer: TextTokenizer) -> None:
    reply = served.complete(prompt=LONG, max_tokens=0, echo=True, truncate_prompt_tokens=5)
    (request,) = served.engine.submitted
    left = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=True)
    assert reply.json()["choices"][0]["text"].strip() == left.strip()


def test_a_chat_is_cut_at_the_left_alone(served: Served) -> None:
    messages = [{"role": "user", "content": LONG}]
    fields: dict[str, object] = {"messages": messages, "max_tokens": 4}
    assert served.chat(**fields).status_code == 400
    reply = served.chat(**fields, truncate_prompt_tokens=40)
    assert reply.status_code == 200 and WARNINGS in reply.headers
    (request,) = served.engine.submitted
    assert len(request.prompt_token_ids) == 40
    reply = served.chat(**fields, truncate_prompt_tokens=40, truncation_side="right")
    assert error_of(reply)["param"] == "truncation_side"


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
def test_an_output_as_long_as_the_context_leaves_no_prompt(served: Served, endpoint: str) -> None:
    body = {**BASE[endpoint], "max_tokens": 256, "truncate_prompt_tokens": -1}
    reply = served.client.post(endpoint, json=body)
    error = error_of(reply)
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")


def test_a_text_beyond_all_measure_is_not_made_to_tokens(served: Served) -> None:
    reply = served.complete(prompt="x" * (2**20 + 1), truncate_prompt_tokens=5)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "prompt"
