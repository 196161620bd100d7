"""Calls and reasoning in the tokens of real models: a tag is one whether it is one token or spelled
in several, and arguments that hold tags are exact."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Delta, Finish
from quire.server.generation.choice_output import ChoiceOutput
from quire.server.generation.context import Prompt, TextOptions
from quire.server.generation.output_delta import GatheredOutput, OutputDelta
from quire.server.parsers.formats import ReasoningFormat, ReasoningFormatName, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from quire.server.text.stop_strings import StopStringTable
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.profiles import cases
from tests.real.models import real_folder
from tests.server.parsers.outputs import TOOLS
from tests.server.parsers.test_output_parser import Calls, can_be_written, fragments, write_calls

THINK, HARMONY = ReasoningFormatName.think.value, ReasoningFormatName.gpt_oss.value
REAL = [
    ("qwen3", ToolFormatName.hermes, THINK),
    ("qwen3", ToolFormatName.qwen3_coder, THINK),
    ("deepseek_v3", ToolFormatName.deepseek_v3, THINK),
    ("deepseek_v3", ToolFormatName.deepseek_v31, THINK),
    ("gptoss", ToolFormatName.gpt_oss, HARMONY),
    ("llama3_1", ToolFormatName.llama3_json, THINK),
    ("gemma3", ToolFormatName.hermes, THINK),
    ("llama2", ToolFormatName.hermes, THINK),
]
"""Tokenizers with the formats of their models; of Gemma and Llama 2, whose templates have none,
with a common one."""
OF_MODELS = pytest.mark.parametrize(("name", "form", "reasoning"), REAL)


@cache
def real_tokenizer(name: str) -> TextTokenizer:
    return load_tokenizer(str(real_folder(f"tokenizers/{name}")), None)


def in_tokens(tokenizer: TextTokenizer, parts: Sequence[str]) -> list[int]:
    """Return the tokens of each part on its own: a tag that is cut is spelled in ordinary ones.
    Where a tokenizer would begin a part with a blank, its tokens are those of its bytes."""
    tokens: list[int] = []
    for part in parts:
        ids = tokenizer.encode(part, add_special_tokens=False)
        is_exact = b"".join(map(tokenizer.token_bytes.of, ids)) == part.encode()
        tokens += ids if is_exact else (byte_tokens(tokenizer)[byte] for byte in part.encode())
    return tokens


@cache
def byte_tokens(tokenizer: TextTokenizer) -> Mapping[int, int]:
    """Return the token of each byte that has one."""
    known = ((tokenizer.token_bytes.of(token), token) for token in range(tokenizer.num_tokens))
    return {text[0]: token for text, token in known if len(text) == 1}


async def _joined(
    tokenizer: TextTokenizer, tokens: Sequence[int], parsing: ParserOptions, sizes: Sequence[int]
) -> OutputDelta:
    request = NewRequest("request", (0,), Sampling(), Stopping(max_tokens=len(tokens) + 1))
    choice = ChoiceOutput(
        TextOptions(parsing=parsing),
        Prompt((0,), "messages", "a"),
        tokenizer,
        StopStringTable((), include_stop=False),
        request=request,
    )
    gathered, left = GatheredOutput(), list(tokens)
    for size in (*sizes, len(tokens)):
        step, left = left[:size], left[size:]
        gathered.add(await choice.add(Delta("request", tuple(step))))
    ended = Finish(Reason.MAX_TOKENS, 0, 1, len(tokens), 0, 0, 0.0, 0.0, 0.0, ())
    gathered.add(await choice.add(Delta("request", (), finish=ended)))
    return gathered.joined()


def output_of(
    tokenizer: TextTokenizer, tokens: Sequence[int], parsing: ParserOptions, sizes: Sequence[int]
) -> OutputDelta:
    """Return the whole output of tokens that come in steps of these sizes."""
    return asyncio.run(_joined(tokenizer, tokens, parsing, sizes))


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False) if a < b]


def said(output: OutputDelta) -> tuple[object, ...]:
    calls = [(call.name, json.loads(call.arguments)) for call in output.calls]
    return calls, output.text, output.reasoning


@OF_MODELS
@cases(25)
@given(st.data())
def test_arguments_with_tags_are_exact_in_any_tokens(
    name: str, form: ToolFormatName, reasoning: ReasoningFormat, data: st.DataObject
) -> None:
    tokenizer = real_tokenizer(name)
    tags = [*fragments(form.value), *[*tokenizer.special_tokens][:40], "é😀", " ", "word"]
    held = "".join(data.draw(st.lists(st.sampled_from(tags), max_size=6)))
    calls: Calls = [("search", {"query": held}), ("now", {})]
    assume(can_be_written(calls, form))
    thought = f"{reasoning.opens}Hm.{reasoning.closes}{reasoning.next_opens}"
    text = f"{thought}{write_calls(calls, form)}"
    tokens = in_tokens(tokenizer, cut(text, data.draw(st.lists(st.integers(0, len(text))))))
    parsing = ParserOptions(form.value, TOOLS, reasoning=reasoning)
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=40))
    output = output_of(tokenizer, tokens, parsing, sizes)
    assert said(output) == (calls, "", "Hm.")
    assert output.ending is not None and output.ending.num_broken == 0


@OF_MODELS
@cases(40)
@given(st.data())
def test_an_enforced_answer_is_exact_in_any_tokens(
    name: str, form: ToolFormatName, reasoning: ReasoningFormat, data: st.DataObject
) -> None:
    """Special tokens cannot be a part of it: a grammar has them spelled."""
    tokenizer = real_tokenizer(name)
    tags = [*reasoning.tags, *form.value.tags, " ", "\n"]
    held = "".join(data.draw(st.lists(st.sampled_from(tags), max_size=6)))
    answer = json.dumps({"text": held}, ensure_ascii=False)
    opening = reasoning.next_opens + reasoning.answer_opens
    parts = [reasoning.opens, "Hm.", reasoning.closes, opening, *answer]
    parsing = ParserOptions(form.value, TOOLS, reasoning=reasoning, is_enforced=True)
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=40))
    output = output_of(tokenizer, in_tokens(tokenizer, parts), parsing, sizes)
    assert said(output) == ([], answer, "Hm.")


@pytest.mark.parametrize("spelled", [False, True], ids=["as tokens", "spelled"])
@OF_MODELS
def test_calls_after_reasoning_come_with_every_way_to_write_the_seam(
    name: str, form: ToolFormatName, reasoning: ReasoningFormat, spelled: bool
) -> None:
    tokenizer, calls = real_tokenizer(name), write_calls([("now", {})], form)
    parsing = ParserOptions(form.value, TOOLS, reasoning=reasoning, in_reasoning=True)
    for space in ("", "\n", "\n\n", " "):
        text = f"Hm.{reasoning.closes}{reasoning.next_opens}{space}{calls}"
        tokens = in_tokens(tokenizer, [*text] if spelled else [text])
        for size in (1, len(tokens)):
            output = output_of(tokenizer, tokens, parsing, [size] * len(tokens))
            assert said(output) == ([("now", {})], "", "Hm.")
