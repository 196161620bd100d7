"""Outputs are of their grammars with tokenizers of every kind, whatever the text has that reads as
a token of another kind."""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.server.grammars.source import GrammarKind, GrammarSource
from tests.profiles import cases
from tests.server.grammars.outputs import Outputs, of_json
from tests.server.grammars.tokenizers import END, SPECIAL, TAGS, Kind, write_tokenizer

PIECES = st.sampled_from(
    [*TAGS, END, SPECIAL, "u\u0308", "\ufb01", "\u2460", "▁", " ", "  ", "\n", "é", "a", "name"]
    + ["</h1>", "\U0001f600", "~", "0x41>", "<0x41>", "<unk>"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=4).map("".join)
CHOICES = st.lists(TEXTS, min_size=1, max_size=3, unique=True)


@pytest.fixture(scope="module", params=list(Kind))
def outputs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outputs]:
    made = Outputs(write_tokenizer(request.param, tmp_path_factory.mktemp("tokenizer")), END)
    yield made
    made.close()


@given(CHOICES, st.integers(0, 2**32))
@example(["<tool_call>"], 0)
@example([END], 0)
@cases(25)
def test_a_choice_is_written(outputs: Outputs, texts: list[str], seed: int) -> None:
    source = GrammarSource(GrammarKind.CHOICE, json.dumps(texts), "guided_choice")
    assert outputs.answer(source, seed) in texts


@given(CHOICES, st.integers(0, 2**32))
@cases(25)
def test_an_enum_is_written(outputs: Outputs, texts: list[str], seed: int) -> None:
    texts = [text.replace("\n", "") + "." for text in texts]
    assert json.loads(outputs.answer(of_json({"enum": texts}), seed)) in texts


@given(TEXTS, TEXTS, st.integers(0, 2**32))
@example("a▁b", "<x>", 0)
@cases(25)
def test_keys_and_constants_are_written(outputs: Outputs, key: str, text: str, seed: int) -> None:
    key, text = key.replace("\n", ""), text.replace("\n", "")
    schema = {
        "type": "object",
        "properties": {key: {"const": text}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": [key, "n"],
        "additionalProperties": False,
    }
    found = json.loads(outputs.answer(of_json(schema), seed))
    assert found[key] == text and found["n"] in range(1, 10)


@given(CHOICES, st.integers(0, 2**32))
@example(["<h1>"], 0)
@cases(25)
def test_an_expression_is_matched(outputs: Outputs, texts: list[str], seed: int) -> None:
    expression = f"({'|'.join(map(re.escape, texts))})[a-e]{{3}}</h1>"
    source = GrammarSource(GrammarKind.REGEX, expression, "guided_regex")
    assert re.fullmatch(expression, outputs.answer(source, seed))


@given(CHOICES, st.integers(0, 2**32))
@cases(25)
def test_a_grammar_in_lark_is_followed(outputs: Outputs, texts: list[str], seed: int) -> None:
    literals = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    source = GrammarSource(
        GrammarKind.GRAMMAR, f'start: "<x>" word " </x>"\nword: {literals}', "guided_grammar"
    )
    assert outputs.answer(source, seed) in [f"<x>{text} </x>" for text in texts]
