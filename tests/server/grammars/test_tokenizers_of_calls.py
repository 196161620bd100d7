"""Enforced calls and reasoning are read back with tokenizers of every kind, where their tags are
text, added tokens, or special tokens."""

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from quire.scheduler.request import ReasoningTags, ThinkingBudget
from quire.server.grammars.compose import compose
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.parsers.formats import ReasoningFormatName, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.grammars.outputs import Outputs
from tests.server.grammars.tokenizers import END, SPECIAL, Kind, write_tokenizer
from tests.server.parsers.outputs import read

THINK = ReasoningFormatName.think.value
TAGS = (THINK.opens, THINK.closes)
MAX_TOKENS = 5
NUM_PUT_OFF = 3
"""Bytes of a character that a tag waits for."""
NUM_OF_ANSWER = 10
"""Of its letters and the white space before it."""


class Tags(StrEnum):
    """The ways in which a tokenizer has the tags of a format."""

    TEXT = "text"
    ADDED = "added"
    SPECIAL = "special"


Made = Callable[[Kind, tuple[str, ...], Tags], Outputs]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Outputs with a tokenizer that has these tags."""
    all_made = []

    @cache
    def make(kind: Kind, tags: tuple[str, ...], way: Tags) -> Outputs:
        added = () if way is Tags.TEXT else tags
        folder = tmp_path_factory.mktemp("tokenizer")
        write_tokenizer(kind, folder, added, are_special=way is Tags.SPECIAL)
        all_made.append(Outputs(folder, END))
        return all_made[-1]

    yield make
    for each in all_made:
        each.close()


TEXTS = st.lists(
    st.sampled_from(["<x>", "<h1>", END, SPECIAL, "u\u0308", "\ufb01", "▁", "  ", "é", "name"]),
    min_size=1,
    max_size=3,
).map(lambda parts: "".join(["a", *parts, "b"]))


def tool(name: str, texts: list[str]) -> CallableTool:
    """A tool with a text of these and a number, or without parameters."""
    schema: dict[str, object] = {"type": "object", "properties": {}}
    if texts:
        number = {"type": "integer", "minimum": 1, "maximum": 20}
        schema["properties"] = {"city": {"type": "string", "enum": texts}, "n": number}
        schema["required"] = ["city", "n"]
    return CallableTool(name, schema, "tools[0].function", "tools[0].function.parameters")


def tags_of(form: ToolFormatName) -> tuple[str, ...]:
    """The tags of a format that are likely to be tokens."""
    return tuple(dict.fromkeys(tag for tag in form.value.tags if tag[0] in "<["))


@pytest.mark.parametrize("form", list(ToolFormatName), ids=lambda form: form.name)
@given(
    st.tuples(st.sampled_from(Kind), st.sampled_from(Tags)),
    st.lists(st.lists(TEXTS, max_size=2), min_size=1, max_size=2),
    st.integers(0, 2**32),
)
@example((Kind.BYTES, Tags.ADDED), [[]], 0)
@example((Kind.BYTES, Tags.SPECIAL), [["a"]], 0)
@example((Kind.METASPACE, Tags.TEXT), [[f"a{END}b"]], 0)
@cases(12)
def test_required_calls_are_read(
    made: Made,
    form: ToolFormatName,
    tokenizer: tuple[Kind, Tags],
    tools: list[list[str]],
    seed: int,
) -> None:
    kind, way = tokenizer
    tags = tags_of(form)
    # where "▁" stands for a space, a tag that has one is decoded with a space
    assume("▁" not in "".join(tags) or kind not in (Kind.FALLBACK, Kind.METASPACE))
    outputs = made(kind, tags, way)
    offered = [tool(f"find_{index}", texts) for index, texts in enumerate(tools)]
    specials = outputs.text.special_tokens
    body = tool_calls(form.value, ToolUse(offered, True, seed % 2 == 0), specials)
    grammar = compose(body, None, prompt="", special_tokens=specials)
    options = ParserOptions(form.value, {each.name: each.parameters for each in offered})
    pieces = outputs.pieces(outputs.written(grammar, seed), options.tags)
    output = read(pieces, options)
    assert output == read(["".join(pieces)], options)
    assert output.calls and not output.content and all(call.is_whole for call in output.calls)
    for call in output.calls:
        texts, arguments = tools[int(call.name.removeprefix("find_"))], json.loads(call.arguments)
        assert (arguments["city"] in texts and arguments["n"] <= 20) if texts else arguments == {}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("way", Tags)
@given(st.sampled_from(Kind), st.integers(0, 2**32))
@cases(15)
def test_a_budget_closes_the_reasoning_before_an_answer(
    made: Made, way: Tags, is_open: bool, kind: Kind, seed: int
) -> None:
    """Where the prompt has opened it, and where the output may."""
    outputs = made(kind, TAGS, way)
    grammar = reasoned(outputs, THINK.opens if is_open else "Hi")
    opens, closes = (outputs.text.encode(tag, add_special_tokens=False) for tag in TAGS)
    budget = ThinkingBudget(MAX_TOKENS, opens, closes, is_open)
    output = outputs.written(grammar, seed, budget)
    found = read(outputs.pieces(output, TAGS), ParserOptions(reasoning=THINK, in_reasoning=is_open))
    assert found.content in ("yes", "no<x>")
    most = len(opens) + MAX_TOKENS + NUM_PUT_OFF + len(closes)
    assert len(output.token_ids) <= most + NUM_OF_ANSWER


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("way", Tags)
@given(st.sampled_from(Kind), st.integers(0, 2**32))
@cases(15)
def test_masks_of_reasoning_are_the_same_for_every_request(
    made: Made, way: Tags, is_open: bool, kind: Kind, seed: int
) -> None:
    """Wherever a tag or a character has begun, and where the reasoning ends."""
    outputs = made(kind, TAGS, way)
    grammar = reasoned(outputs, THINK.opens if is_open else "Hi")
    tags = ReasoningTags("" if is_open else THINK.opens, THINK.closes)
    plain, closes = made(kind, (), Tags.TEXT).text, THINK.closes
    texts = (THINK.opens, *(closes[:length] for length in range(1, len(closes) + 1)), "é")
    often = [plain.encode(each, add_special_tokens=False) for each in texts]
    often += [outputs.text.encode(each, add_special_tokens=False) for each in TAGS]
    assert outputs.has_same_masks(grammar, tags, seed, often)


def reasoned(outputs: Outputs, prompt: str) -> str:
    specials = outputs.text.special_tokens
    return compose('body: "yes" | "no<x>"', THINK, prompt=prompt, special_tokens=specials)


@pytest.mark.parametrize("way", Tags)
@pytest.mark.parametrize("kind", Kind)
def test_a_tag_is_closed_by_its_tokens_and_by_its_text(made: Made, kind: Kind, way: Tags) -> None:
    outputs = made(kind, TAGS, way)
    grammar, thought = reasoned(outputs, THINK.opens), "why"
    natural = outputs.text.encode(f"{thought}{THINK.closes}", add_special_tokens=False)
    plain = made(kind, (), Tags.TEXT).text
    spelled = plain.encode(f"{thought}{THINK.closes}", add_special_tokens=False)
    for token_ids in (natural, spelled):
        assert outputs.takes(grammar, token_ids)
        assert not outputs.may_end(grammar, token_ids)
        answer = outputs.text.encode("yes", add_special_tokens=False)
        assert outputs.may_end(grammar, (*token_ids, *answer))
