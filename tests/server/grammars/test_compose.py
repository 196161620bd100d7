"""Reasoning before what an output must be of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.grammars.compose import Grammar, compose, in_channel, literal, tag
from quire.server.parsers.formats import ReasoningFormatName
from tests.profiles import cases
from tests.server.grammars.matching import FIRST_SPECIAL, accepts

THINK = ReasoningFormatName.think.value
TAGS = (THINK.opens, THINK.closes)
ANSWER = 'body: "yes" | "no"'


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
@cases(200)
def test_a_literal_is_of_its_text_alone(text: str) -> None:
    grammar = f"start: {literal(text)}"
    assert accepts(grammar, text)
    assert not accepts(grammar, text[:-1]) and not accepts(grammar, text + "a")


@pytest.mark.parametrize("special", [(), TAGS, TAGS[1:]])
@pytest.mark.parametrize(
    ("prompt", "output", "is_right"),
    [
        ("Hi", "yes", True),
        ("Hi", "<think>Is it? </thin no </think>\n\nyes", True),
        ("Hi", "<think>Is it?", False),
        ("Hi", "<think>Is it?</think>maybe", False),
        ("Hi", "Is it?</think>yes", False),
        ("Hi<think>\n", "Is it?</think>\nno", True),
        ("Hi<think>\n", "</think>no", True),
        ("Hi<think>\n", "yes", False),
        ("Hi<think>\n\n</think>\n\n", "yes", True),
        ("Hi<think>\n\n</think>\n\n", "<think></think>yes", False),
    ],
)
def test_reasoning_comes_first(
    prompt: str, output: str, is_right: bool, special: tuple[str, ...]
) -> None:
    """As text or as special tokens."""
    ids = {text: FIRST_SPECIAL + index for index, text in enumerate(special)}
    grammar = compose(ANSWER, THINK, prompt=prompt, special_tokens=ids)
    assert accepts(grammar, output, special) == is_right


@pytest.mark.parametrize("special", [(), ("<|channel|>", "<|start|>", "<|message|>", "<|end|>")])
@pytest.mark.parametrize(
    ("output", "is_right"),
    [
        ("<|channel|>final<|message|>yes", True),
        (
            "<|channel|>analysis<|message|>Is it?<|end|><|start|>assistant"
            "<|channel|>final<|message|>yes",
            True,
        ),
        ("<|channel|>analysis<|message|>Is it?<|end|><|channel|>final<|message|>yes", False),
        ("<|channel|>final<|message|>maybe", False),
        ("yes", False),
    ],
)
def test_an_answer_has_a_channel(output: str, is_right: bool, special: tuple[str, ...]) -> None:
    """As text or as special tokens."""
    ids = {text: FIRST_SPECIAL + index for index, text in enumerate(special)}
    form = ReasoningFormatName.gpt_oss.value
    answer = in_channel(Grammar(ANSWER, "json", "field"), form, ids)
    grammar = compose(answer.text, form, prompt="Hi<|end|><|start|>assistant", special_tokens=ids)
    assert accepts(grammar, output, special) == is_right


def test_without_reasoning_the_answer_stands_alone() -> None:
    grammar = compose(ANSWER, None, prompt="Hi<think>", special_tokens={})
    assert accepts(grammar, "yes") and not accepts(grammar, "x</think>yes")


def test_a_special_token_is_no_text() -> None:
    assert tag("<think>", {"<think>": 7}) == "<[7]>"
    assert not accepts('start: "<think>"', "<think>", ("<think>",))
