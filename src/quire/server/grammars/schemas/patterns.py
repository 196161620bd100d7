"""Regular expressions of schemas: those that grammars can be made of, and those that say the same
without looking around.
"""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from quire.engine.grammar.limits import parser_limits

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_PATTERN_CHARS = 4_000
"""Longer patterns are not made."""
MAX_WORD_CHARS = 128
KEPT_PATTERNS = 1024
KEPT_MATCHERS = 64
_ANCHORS = {
    r"(?![\s\S])": "$",
    r"(?![\S\s])": "$",
    r"(?!.|\n)": "$",
    r"(?=$)": "$",
    r"(?<![\s\S])": "^",
    r"(?<![\S\s])": "^",
    r"(?=^)": "^",
    r"(?<=^)": "^",
}
"""Looks around that are the end or the beginning of a text."""
_DATE = r"(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)"
_SECONDS = r"\d+(?:[.,]\d+)?S"
_TIME = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_SAME = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@"
    r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@"
        r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    ),
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": rf"^P(?:\d+W|{_DATE}(?:{_TIME})?|{_TIME})$",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(?:\d+\.?\d*|\.\d+)$",
}
"""Patterns of zod's e-mail addresses and durations and of pydantic's decimals, and others that
match the same."""
_END = ""
_ANY = r"[\s\S]*"
_HALVES = re.compile(r"[\ud800-\udfff]")


def plain_pattern(pattern: str) -> str | None:
    """Return a pattern that matches the same and that grammars can be made of, None where there is
    none."""
    same = _SAME.get(pattern, pattern)
    for look, anchor in _ANCHORS.items():
        same = same.replace(look, anchor)
    return same if is_regular(same) else None


def is_regular(pattern: str) -> bool:
    """Return whether grammars can be made of a pattern: it does not look around, nor back."""
    return is_string_enforced(json.dumps({"type": "string", "pattern": pattern}))


@lru_cache(maxsize=KEPT_PATTERNS)
def is_string_enforced(schema: str) -> bool:
    """Return whether grammars can be made of a schema of strings, given as JSON, or nothing is of
    it, which is found where the whole is checked."""
    fault = _fault(schema)
    return not fault or "Unsatisfiable" in fault


@lru_cache(maxsize=KEPT_PATTERNS)
def are_disjoint(patterns: tuple[str, ...]) -> bool:
    """Return whether no text matches two of the patterns, as far as that can be told."""
    if len(patterns) < 2:
        return True
    held = {pattern: True for pattern in patterns}
    return not _fault(json.dumps({"type": "object", "patternProperties": held}))


def _fault(schema: str) -> str:
    """Return why no grammar can be made of a schema, given as JSON; empty where one can be. The
    interpreter's lock is free meanwhile."""
    matcher = _built(schema)
    return str(matcher.get_error()) if matcher.is_error() else ""


def _built(schema: str) -> "LLMatcher":
    from llguidance import LLMatcher  # late: most servers have no grammars

    grammar = f"start: %json {schema}"
    return LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=parser_limits())


@lru_cache(maxsize=1)
def _byte_tokenizer() -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern that grammars can be made of is found in a text, in a time that
    grows as the text, whatever the pattern is."""
    following = _matcher(pattern).deep_copy()
    given = list(json.dumps(text, ensure_ascii=False).encode(errors="replace"))
    return following.try_consume_tokens(given) == len(given) and following.is_accepting()


@lru_cache(maxsize=KEPT_MATCHERS)
def _matcher(pattern: str) -> "LLMatcher":
    return _built(json.dumps({"type": "string", "pattern": pattern}))


class _Bytes:
    """A tokenizer of single bytes, and one that ends a text."""

    def __init__(self) -> None:
        self.tokens = [*(bytes([value]) for value in range(256)), b""]
        self.special_token_ids = [256]
        self.eos_token_id = 256
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def all_but(words: Iterable[str]) -> str | None:
    """Return a pattern of all texts but these, None where it would be long, or a word cannot be
    written."""
    root: dict[str, object] = {}
    for word in words:
        if _HALVES.search(word) or len(word) > MAX_WORD_CHARS:
            return None
        _add(root, word)
    pattern = f"^(?:{_but(root)})$"
    return pattern if len(pattern) <= MAX_PATTERN_CHARS else None


def _add(root: dict[str, object], word: str) -> None:
    node = root
    for char in word:
        inner = node.setdefault(char, {})
        assert isinstance(inner, dict)
        node = inner
    node[_END] = {}


def _but(node: dict[str, object]) -> str:
    """Return an expression of what may follow a beginning of words that are left out."""
    ways = [] if _END in node else [""]
    others = "".join(map(re.escape, (char for char in node if char != _END)))
    ways.append(f"[^{others}]{_ANY}" if others else f"[\\s\\S]{_ANY}")
    for char, inner in node.items():
        if char != _END:
            assert isinstance(inner, dict)
            ways.append(f"{re.escape(char)}(?:{_but(inner)})")
    return "|".join(ways)
