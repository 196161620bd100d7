"""Prompts on their way in: which one is at fault, and how long one may be."""

import pytest

from tests.server.scripted_engine import FACTS
from tests.server.served import Served

MOST = FACTS.max_model_len
OUTSIDE = FACTS.vocab_size


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("a " * MOST, "prompt"),
        (["a " * MOST], "prompt[0]"),
        (["a", "a " * MOST], "prompt[1]"),
        (["a", "a" * 10**6], "prompt[1]"),
        ([5] * MOST, "prompt"),
        ([[5] * MOST], "prompt[0]"),
        ([[5], [5] * MOST], "prompt[1]"),
        ([5, OUTSIDE], "prompt[1]"),
        ([[5, OUTSIDE]], "prompt[0][1]"),
        ([[5], [5, OUTSIDE]], "prompt[1][1]"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_the_prompt_at_fault_is_named_as_it_was_sent(
    served: Served, prompt: object, param: str
) -> None:
    error = served.complete(prompt=prompt, max_tokens=1).json()["error"]
    assert error["param"] == param
    assert served.engine.submitted == []


def test_of_several_prompts_the_one_that_leaves_too_little_room_is_said(served: Served) -> None:
    error = served.complete(prompt=[[5], [5] * 250], max_tokens=7).json()["error"]
    assert error["param"] == "max_tokens"
    assert "'prompt[1]' has 250" in error["message"]


def test_a_scored_prompt_leaves_room_for_the_token_that_is_thrown_away(served: Served) -> None:
    score: dict[str, object] = {"echo": True, "max_tokens": 0, "logprobs": 0}
    body = served.complete(prompt=[5] * (MOST - 1), **score).json()
    assert len(body["choices"][0]["logprobs"]["tokens"]) == MOST - 1
    error = served.complete(prompt=[5] * MOST, **score).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert f"at most {MOST - 1}" in error["message"]
