"""Finds grammars in Lark whose texts would run on over the line end and the tag that follow them.

A terminal takes as much as it can: one of any text, or of white space with line ends in it, would
take the line end before the closing tag of a call as well, and the call could never end. More
grammars are found than run on: one that is not found does end.
"""

import re
from collections.abc import Iterator, Sequence, Set
from typing import TypeAlias

MAX_CHARS = 64 * 1024
"""A longer grammar is said to run on: looking would take long."""
MAX_REGEX_CHARS = 500
MAX_PASSES = 8
"""Terminals that are made of others, so many deep, are followed."""
_TOKENS = re.compile(
    r"""
    (?P<comment>//[^\n]*) | (?P<string>"(?:\\.|[^"\\\n])*"i?) | (?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    | (?P<directive>%\w+) | (?P<name>[A-Za-z_]\w*) | (?P<other>.|\n)
    """,
    re.VERBOSE,
)
_DEFINITION = re.compile(
    r"^[ \t]*+([?!]?[A-Za-z_]\w*+)[ \t]*+(?:\.\d++|\[[^\]\n]*+\])?[ \t]*+:", re.MULTILINE
)
_IMPORT = "%import"
_OTHER_LANGUAGES = frozenset(("%json", "%lark", "%regex"))
_RUNS_OF_BREAKS = frozenset(("NEWLINE", "WS"))
"""Terminals of Lark's own that match any number of line ends."""
_ONE_BREAK = re.compile(r"(?:\\r\??)?\\n|\[(?:\\[nr])+\]")
_WITHOUT_BREAKS = re.compile(r"\[\^(?:\\.|[^\]\\])*?\\n(?:\\.|[^\]\\])*\]")
"""A class of characters other than line ends."""
_MAY_BREAK = re.compile(r"\\[nsSWDpPxuU0]|\(\?[a-zA-Z]*s|\[\^")
_REPEATS = frozenset("+*~")
Token: TypeAlias = tuple[str, str]


def may_run_on(lark: str) -> bool:
    """Return whether a terminal of a grammar may take a line end and more for a part of it."""
    if len(lark) > MAX_CHARS:
        return True
    starts = [*_DEFINITION.finditer(lark)]
    ends = [*(each.start() for each in starts), len(lark)]
    found = [("", lark[: ends[0]])]
    found += [(each[1], lark[each.end() : end]) for each, end in zip(starts, ends[1:], strict=True)]
    bodies = [(name.lstrip("?!"), [*_tokens(body)]) for name, body in found]
    if any(_runs_on(tokens) for _, tokens in bodies):
        return True
    terminals = {name: tokens for name, tokens in bodies if name.isupper()}
    breaking = {"LF"}
    for _ in range(MAX_PASSES):
        left = terminals.keys() - breaking
        more = {name for name in left if _has_break(terminals[name], breaking)}
        if not more:
            return any(_repeats(tokens) for name, tokens in terminals.items() if name in breaking)
        breaking |= more
    return True


def _tokens(body: str) -> Iterator[Token]:
    for found in _TOKENS.finditer(body):
        assert found.lastgroup is not None
        yield found.lastgroup, found[0]


def _runs_on(tokens: Sequence[Token]) -> bool:
    """Return whether a definition has an expression that may match a line end and more, or what is
    not looked into."""
    imports = False
    for kind, text in tokens:
        if text in _OTHER_LANGUAGES or (kind == "regex" and _breaks(text) and not _is_one(text)):
            return True
        imports = text == _IMPORT or (imports and text != "\n")
        if imports and text in _RUNS_OF_BREAKS:
            return True
    return False


def _is_one(literal: str) -> bool:
    """Return whether an expression is one line end and nothing else."""
    return _ONE_BREAK.fullmatch(literal[1:].rpartition("/")[0]) is not None


def _breaks(literal: str) -> bool:
    """Return whether an expression may match a line end."""
    body, _, flags = literal[1:].rpartition("/")
    if len(body) > MAX_REGEX_CHARS or ("s" in flags and "." in body):
        return True
    return _MAY_BREAK.search(_WITHOUT_BREAKS.sub("x", body)) is not None


def _has_break(tokens: Sequence[Token], breaking: Set[str]) -> bool:
    """Return whether a terminal may match a line end; `breaking` are terminals that may."""
    return any(
        (kind == "string" and "\\n" in text)
        or (kind == "regex" and _breaks(text))
        or (kind == "name" and text in breaking)
        for kind, text in tokens
    )


def _repeats(tokens: Sequence[Token]) -> bool:
    return any(kind == "other" and text in _REPEATS for kind, text in tokens)
