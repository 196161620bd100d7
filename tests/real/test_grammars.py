"""Outputs are of their grammars with real tokenizers, whatever reads as one of their tokens."""

import json
import re
from collections.abc import Iterator
from itertools import islice

import pytest
from tokenizers import Tokenizer

from quire.engine.grammar.tokenizer_facts import read_facts
from quire.scheduler.request import ReasoningTags, ThinkingBudget
from quire.server.grammars.compose import compose
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.parsers.formats import ReasoningFormatName, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.long import rest_is_long
from tests.real.models import real_folder
from tests.server.grammars.outputs import Outputs, of_json
from tests.server.parsers.outputs import read

NAMES = ("qwen3", "llama3_1", "gptoss", "deepseek_v3", "gemma3", "llama2")
IN_EVERY_RUN = ("qwen3", "llama2")
"""One whose pieces are bytes, one whose pieces are text; every run has each in test_calls.py."""
THINK = ReasoningFormatName.think.value
MAX_THOUGHT = 4
NUM_OF_ONE_KIND = 3


@pytest.fixture(scope="module", params=rest_is_long(IN_EVERY_RUN, NAMES))
def outputs(request: pytest.FixtureRequest) -> Iterator[Outputs]:
    folder = real_folder(f"tokenizers/{request.param}")
    made = Outputs(folder, read_facts(folder).special_tokens()["eos_token"])
    yield made
    made.close()


def literals(outputs: Outputs) -> list[str]:
    """Texts that read as tokens of each kind, or as others once they are normalised."""
    added, special = outputs.text.added_tokens, outputs.text.special_tokens
    plain = [text for text in added if text not in special and text.strip()]
    tags = [text for text in plain if text.startswith("<")]
    ends = [text for text, token_id in added.items() if token_id == outputs.end_id]
    named = [*ends, *islice(special, NUM_OF_ONE_KIND), *islice(tags, NUM_OF_ONE_KIND)]
    named += [text for text in ("<h1>", "</think>", "<tool_call>") if text in added]
    made = ["a▁b", " a", "u\u0308", "\ufb01\u2460", "\U0001f600", "<0x41>", "1234567", "[INST]"]
    return list(dict.fromkeys([*named, *(f"x{text}y" for text in named), *made]))


def sources(texts: list[str]) -> list[tuple[GrammarSource, str]]:
    """Grammars that are answered with one of these texts, and the expression for the answer."""
    any_of = "|".join(map(re.escape, texts))
    quoted = "|".join(re.escape(json.dumps(text, ensure_ascii=False)) for text in texts)
    key = {"properties": {texts[0]: {"const": 1}}, "required": [texts[0]], "type": "object"}
    first = re.escape(json.dumps(texts[0], ensure_ascii=False))
    lark = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return [
        (GrammarSource(GrammarKind.CHOICE, json.dumps(texts), "x"), any_of),
        (of_json({"enum": texts}), quoted),
        (of_json({"const": texts[0]}), first),
        (of_json({**key, "additionalProperties": False}), rf"\{{\s*{first}\s*:\s*1\s*\}}"),
        (GrammarSource(GrammarKind.REGEX, f"({any_of})[a-e]{{2}}", "x"), f"({any_of})[a-e]{{2}}"),
        (GrammarSource(GrammarKind.GRAMMAR, f'start: ({lark}) "</h1>"', "x"), f"({any_of})</h1>"),
    ]


@pytest.mark.parametrize("num_more", [0, 1])
def test_answers_are_as_asked_for(outputs: Outputs, num_more: int) -> None:
    """With one alternative, where all of it is forced, and with two."""
    texts = literals(outputs)
    for index, text in enumerate(texts):
        others = [texts[(index + 1) % len(texts)]] * num_more
        for source, expression in sources([text, *others]):
            assert re.fullmatch(expression, outputs.answer(source, index)), (source, expression)


@pytest.mark.parametrize("form", list(ToolFormatName), ids=lambda form: form.name)
def test_required_calls_are_read(outputs: Outputs, form: ToolFormatName) -> None:
    specials = outputs.text.special_tokens
    number = {"type": "integer", "minimum": 1, "maximum": 20}
    city = {"type": "string", "enum": ["xRome</h1>y"]}
    schemas: dict[str, dict[str, object]] = {
        "find": {"properties": {"city": city, "n": number}, "required": ["city", "n"]},
        "now": {"properties": {}},
    }
    for name, schema in schemas.items():
        path, parameters = "tools[0].function", {"type": "object", **schema}
        tools = [CallableTool(name, parameters, path, f"{path}.parameters")]
        body = tool_calls(form.value, ToolUse(tools, True, False), specials)
        grammar = compose(body, None, prompt="", special_tokens=specials)
        options = ParserOptions(form.value, schemas)
        pieces = outputs.pieces(outputs.written(grammar, 0), options.tags)
        output = read(pieces, options)
        assert output == read(["".join(pieces)], options)
        assert [call.name for call in output.calls] == [name] and output.calls[0].is_whole
        arguments = json.loads(output.calls[0].arguments)
        assert arguments == {} if name == "now" else arguments["city"] == "xRome</h1>y"


@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_is_closed_by_the_tokens_of_its_tag(outputs: Outputs, is_open: bool) -> None:
    specials, tags = outputs.text.special_tokens, (THINK.opens, THINK.closes)
    opens, closes = (outputs.text.encode(tag, add_special_tokens=False) for tag in tags)
    prompt = THINK.opens if is_open else "Hi"
    grammar = compose('body: "yes"', THINK, prompt=prompt, special_tokens=specials)
    budget = ThinkingBudget(MAX_THOUGHT, opens, closes, is_open)
    for seed in range(3):
        output = outputs.written(grammar, seed, budget)
        options = ParserOptions(reasoning=THINK, in_reasoning=is_open)
        assert read(outputs.pieces(output, tags), options).content == "yes"
    word = outputs.text.encode("why", add_special_tokens=False)[-1:]
    assert not is_open or outputs.takes(grammar, (*word, *closes))


@pytest.mark.parametrize("is_open", [False, True])
def test_masks_of_reasoning_are_the_same_for_every_request(outputs: Outputs, is_open: bool) -> None:
    specials = outputs.text.special_tokens
    prompt = THINK.opens if is_open else "Hi"
    body = 'body: %json {"type": "object"}'
    grammar = compose(body, THINK, prompt=prompt, special_tokens=specials)
    tags = ReasoningTags("" if is_open else THINK.opens, THINK.closes)
    texts = ("<", "</", "</think", "</thin", "\n", "<think>", "</think>", "\U0001f9d1", "a <b>")
    often = [outputs.text.encode(each, add_special_tokens=False) for each in texts]
    for seed in range(3):
        assert outputs.has_same_masks(grammar, tags, seed, often)


def test_tokens_of_bytes_are_as_the_model_has_them() -> None:
    """Where these are the bytes: the tag of a call is one token of Qwen's."""
    folder = real_folder("tokenizers/qwen3")
    outputs = Outputs(folder, "<|im_end|>")
    body = 'start: "<tool_call>\\n{\\"name\\": \\"find\\"}"'
    output = outputs.written(body, 0)
    outputs.close()
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert list(output.token_ids) == whole.encode('<tool_call>\n{"name": "find"}').ids
