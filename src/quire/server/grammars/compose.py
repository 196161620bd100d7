"""Grammars in the making are Lark text as llguidance reads it, with a rule `body` for what an
output must be of. Composed with the reasoning that may come before, they are what the engine is
given.

The syntax is that of https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quire.scheduler.request import ReasoningTags
from quire.server.parsers.formats import ReasoningFormat

ANY_TEXT = "/(?s:.*)/"
_SPACE = r"/[ \t\r\n]{1,4}/"


class SchemaPromise(NamedTuple):
    """A schema, as JSON, that an answer is to be of, or the arguments of calls of `tool`."""

    schema: str
    tool: str | None = None


class Grammar(NamedTuple):
    """A grammar for the engine. `kind` is how it was asked for, `field` where, as a path; of
    `warnings` the client is told, and of `loosened`, the paths of keywords of its schemas that are
    not enforced; `promises` are those schemas, which finished outputs are checked against. `parts`
    are grammars of which one is wrong if the whole is.
    One that `has_coarse_form` can be made again with more left out, where it cannot be compiled.
    `reasoning_tags` are those of the reasoning that it begins with, if they tell where that is."""

    text: str
    kind: str
    field: str
    warnings: tuple[str, ...] = ()
    parts: tuple["Grammar", ...] = ()
    reasoning_tags: ReasoningTags | None = None
    loosened: tuple[str, ...] = ()
    promises: tuple[SchemaPromise, ...] = ()
    has_coarse_form: bool = False


ANYTHING = Grammar("", "", "")


def literal(text: str) -> str:
    """Return a text that is not empty as a string of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def tag(text: str, special_tokens: Mapping[str, int]) -> str:
    """Return a tag as the token that it is where the tokenizer has it as a special token, whose
    text matches nothing; else as a string."""
    token_id = special_tokens.get(text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def lacks(text: str) -> str:
    """Return a terminal for all texts that `text` is not in."""
    return f"{ANY_TEXT} & ~({ANY_TEXT} {literal(text)} {ANY_TEXT})"


def written(text: str, tags: Sequence[str], special_tokens: Mapping[str, int]) -> str:
    """Return an expression for a text in which those of the tags that are special tokens are
    written as such."""
    specials = [re.escape(each) for each in tags if each in special_tokens]
    parts = re.split(f"({'|'.join(specials)})", text) if specials else [text]
    return " ".join(tag(part, special_tokens) for part in parts if part)


def in_channel(answer: Grammar, reasoning: ReasoningFormat, specials: Mapping[str, int]) -> Grammar:
    """Return the rule `body` of an answer after what opens answers, in a format in channels."""
    opens = written(reasoning.answer_opens, reasoning.tags, specials)
    body = answer.text.replace("body:", "message:", 1)
    return answer._replace(text=f"body: {opens} message\n{body}") if opens else answer


def compose(
    body: str,
    reasoning: ReasoningFormat | None,
    *,
    prompt: str,
    special_tokens: Mapping[str, int],
) -> str:
    """Return a grammar of `body`, before which the model may reason as the format says.

    prompt: the text that the output goes on with. Where it has opened the reasoning, this goes on
        to its closing tag; where it has closed it, nothing comes before `body`; else the model may
        open it.
    """
    shown = prompt.rstrip()
    if reasoning is None or shown.endswith(reasoning.closes):
        return f"start: body\n{body}\n"
    thought = _thought(reasoning, special_tokens)
    opens = written(reasoning.opens, reasoning.tags, special_tokens)
    start = "reasoning body" if shown.endswith(reasoning.opens) else f"({opens} reasoning)? body"
    return f"start: {start}\nreasoning: {thought}\nSPACE: {_SPACE}\n{body}\n"


def _thought(reasoning: ReasoningFormat, special_tokens: Mapping[str, int]) -> str:
    """Return the rules of a text up to the first closing tag, as its token or spelled by others,
    with the white space after it, and what opens the next message."""
    after = f"SPACE? {written(reasoning.next_opens, reasoning.tags, special_tokens)}"
    closes = literal(reasoning.closes)
    spelled = f"spelled[suffix={closes}]: {ANY_TEXT}"
    if reasoning.closes not in special_tokens:
        return f"spelled {after}\n{spelled}"
    special = f"THOUGHT {tag(reasoning.closes, special_tokens)}"
    thought = f"THOUGHT: {lacks(reasoning.closes)}"
    return f"(spelled | {special}) {after}\n{spelled}\n{thought}"
