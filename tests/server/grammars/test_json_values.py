"""JSON may be laid out as printers do it, and its white space ends, however much is liked."""

import json
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.grammars.json_values import (
    COMPACT,
    MAX_LEVELS,
    TEMPLATE,
    WIDEST_STEP,
    Separators,
    json_value,
)
from tests.profiles import cases
from tests.server.grammars.matching import EOS, accepts, matcher

NUM_LEVELS = 3
"""Arrays and objects of NESTED within one another."""
LONGEST = 2 + NUM_LEVELS * WIDEST_STEP
SPACES = frozenset(b" \t\r\n")
NESTED: dict[str, object] = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"n": {"enum": [1, "x"]}},
                "required": ["n"],
                "additionalProperties": False,
            },
            "maxItems": 3,
        },
        "is_done": {"type": "boolean"},
    },
    "required": ["items", "is_done"],
    "additionalProperties": False,
}
LEAVES = st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab \t\n", max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab "), inner, max_size=3),
    max_leaves=6,
)


def grammar(separators: Separators | None, schema: Mapping[str, object] | None = None) -> str:
    return f"start: {json_value(schema or {}, separators)}\n"


@given(
    VALUES,
    st.sampled_from([None, 1, 2, WIDEST_STEP, "\t"]),
    st.sampled_from([None, COMPACT, TEMPLATE]),
)
@cases(100)
def test_json_may_be_laid_out_as_printers_do_it(
    value: object, indent: int | str | None, separators: Separators | None
) -> None:
    text = json.dumps(value, indent=indent, separators=separators)
    assert accepts(grammar(None), text)


@pytest.mark.parametrize("indent", [2, WIDEST_STEP, "\t"])
def test_indentation_goes_as_deep_as_levels_are_counted(indent: int | str) -> None:
    value: object = 1
    for _ in range(MAX_LEVELS):
        value = [value]
    assert accepts(grammar(None), json.dumps(value, indent=indent))


@given(VALUES)
@cases(50)
def test_separators_are_the_only_white_space_where_they_are_said(value: object) -> None:
    compact, spaced = (json.dumps(value, separators=each) for each in (COMPACT, TEMPLATE))
    for separators, text in ((COMPACT, compact), (TEMPLATE, spaced)):
        assert accepts(grammar(separators), text)
        assert accepts(grammar(separators), spaced if text == compact else compact) == (
            spaced == compact
        )


def longest_run(text: bytes) -> int:
    """The most white space in a row."""
    longest = run = 0
    for byte in text:
        run = run + 1 if byte in SPACES else 0
        longest = max(longest, run)
    return longest


def written(lark: str, random: Random, num_tokens: int) -> tuple[bytes, bool]:
    """What a model writes that would rather write white space than anything else, and whether it
    ended."""
    following, text = matcher(lark), bytearray()
    for _ in range(num_tokens):
        mask = int.from_bytes(following.compute_bitmask(), "little")
        allowed = [each for each in range(EOS + 1) if mask >> each & 1]
        spaces = [each for each in allowed if each in SPACES]
        token_id = random.choice(spaces or allowed)
        assert following.consume_token(token_id)
        if token_id == EOS:
            return bytes(text), True
        text.append(token_id)
    return bytes(text), False


def num_tokens_at_most() -> int:
    """The tokens of the longest value of NESTED, with the most white space between two parts."""
    longest = {"items": [{"n": "x"}] * 3, "is_done": False}
    compact = json.dumps(longest, separators=COMPACT)
    num_parts = sum(compact.count(each) for each in '{}[],:"') + 2
    return len(compact) + num_parts * LONGEST


@given(st.integers(0, 2**32))
@cases(30)
def test_white_space_ends_however_much_a_model_likes_it(seed: int) -> None:
    text, has_ended = written(grammar(None, NESTED), Random(seed), num_tokens_at_most())
    assert has_ended and longest_run(text) <= LONGEST
    json.loads(text)


def test_without_a_bound_it_would_not_end() -> None:
    """The planted fault: llguidance's own white space."""
    free = f"start: %json {json.dumps(NESTED)}\n"
    text, has_ended = written(free, Random(1), num_tokens_at_most())
    assert not has_ended and longest_run(text) > LONGEST
