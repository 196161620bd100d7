"""The rule `body` of answers: of a JSON schema, a regular expression, some strings, or a grammar
that the client wrote in Lark or GBNF."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from quire.server.errors import RequestError
from quire.server.grammars.compose import literal
from quire.server.grammars.json_values import COMPACT, Separators, json_value
from quire.server.grammars.schemas.enforceable import SchemaTerms, enforceable
from quire.server.grammars.source import GrammarKind, GrammarSource

MAX_GBNF_BYTES = 16 * 1024
"""Converting takes time as the square of the length: 0.6 s for the worst of this one."""
MAX_SHOWN_CHARS = 200
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)")
_NOT_PLAIN = '"\\[]^-/'


class AnswerRule(NamedTuple):
    """The rule `body` of what an answer must be of, what the client is warned of, and the paths of
    keywords that it is not held to."""

    body: str
    warnings: tuple[str, ...] = ()
    loosened: tuple[str, ...] = ()


def answer(source: GrammarSource, *, any_whitespace: bool = True) -> AnswerRule:
    """Return what an answer must be of. Raises RequestError for a schema that is none, or that is
    strict and would not be enforced, and for GBNF that cannot be read.

    any_whitespace: JSON may have white space between its parts; else it has none.
    """
    if source.kind is GrammarKind.JSON:
        return _write_json(source, None if any_whitespace else COMPACT)
    return AnswerRule(f"body: {_WRITERS[source.kind](source)}")


def _write_json(source: GrammarSource, separators: Separators | None) -> AnswerRule:
    schema = json.loads(source.text)
    if schema is False:
        raise RequestError(f"Invalid '{source.field}': nothing is valid.", param=source.field)
    kept = {} if schema is True else schema
    made = enforceable(kept, source.field, SchemaTerms(source.strict, source.coarse))
    body = f"body: {json_value(made.schema, separators)}"
    return AnswerRule(body, made.warnings, made.loosened)


def _write_regex(source: GrammarSource) -> str:
    from llguidance import regex_to_lark  # late: most servers have no grammars

    return f"/{regex_to_lark(source.text, '')}/"


def _write_choice(source: GrammarSource) -> str:
    return " | ".join(map(literal, json.loads(source.text)))


def _write_grammar(source: GrammarSource) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    if is_lark_syntax(source.text):
        return f"%lark {{\n{source.text}\n}}"
    if len(source.text.encode()) > MAX_GBNF_BYTES:
        raise RequestError(
            f"Invalid '{source.field}': a grammar in GBNF can have {MAX_GBNF_BYTES} bytes; one in "
            "Lark has a rule 'start'.",
            param=source.field,
        )
    try:
        lark = gbnf_to_lark(_ESCAPE.sub(_character, source.text))
    except Exception as error:  # the converter raises bare Exception, IndexError and others
        why = " ".join(str(error).split())[:MAX_SHOWN_CHARS] or type(error).__name__
        raise RequestError(
            f"Invalid '{source.field}': it has no rule 'start', as grammars in Lark have, and "
            f"cannot be read as GBNF: {why}.",
            param=source.field,
        ) from None
    return f"%lark {{\n{lark}\n}}"


def _character(escape: re.Match[str]) -> str:
    """Return the character that a code stands for: the converter would cut zeros off the code."""
    code = escape[1] or escape[2]
    if code is None or int(code, 16) > sys.maxunicode:
        return escape[0]
    char = chr(int(code, 16))
    return char if char.isprintable() and char not in _NOT_PLAIN else escape[0]


_WRITERS: Mapping[GrammarKind, Callable[[GrammarSource], str]] = {
    GrammarKind.REGEX: _write_regex,
    GrammarKind.CHOICE: _write_choice,
    GrammarKind.GRAMMAR: _write_grammar,
}
