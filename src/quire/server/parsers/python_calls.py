"""Reads calls in Python's syntax: each argument is sent once it is complete."""

import ast
import warnings

from quire.server.parsers.markup import MAX_NAME_CHARS, CallWriter, NotACall, read_as_json, to_json
from quire.server.parsers.text_source import SPACE, Reading

_CLOSING = {"(": ")", "[": "]", "{": "}"}
MAX_VALUE_CHARS = 64 * 1024
"""One argument, which Python's own parser reads as a whole, is at most so long."""


def read_python_call(writer: CallWriter) -> Reading[None]:
    """Read `name(key=literal, ...)`. Raises NotACall."""
    source = writer.source
    writer.begin((yield from _read_word("(", writer)))
    writer.add("{")
    known: set[str] = set()
    while True:
        source.mark()
        yield from source.skip_space()
        if (yield from source.accept(")")):
            break
        key = yield from _read_word("=", writer)
        if key in known:
            raise NotACall
        value = _as_json((yield from _read_value(writer)))
        writer.add(f"{', ' if known else ''}{to_json(key)}: {value}")
        known.add(key)
        yield from source.accept(",")
    writer.add("}")
    writer.end()


def _read_word(stop: str, writer: CallWriter) -> Reading[str]:
    """Return an identifier, and read the character that must follow it."""
    word, source = "", writer.source
    while (char := (yield from source.peek())) != stop:
        word += source.take(1)
        if not char or len(word) > MAX_NAME_CHARS:
            raise NotACall
        if char not in SPACE and not f"a{char}".replace("-", "_").replace(".", "_").isidentifier():
            raise NotACall
    source.take(1)
    return word.strip()


def _read_value(writer: CallWriter) -> Reading[str]:
    """Return the text of a literal, up to the comma or the parenthesis that ends it."""
    source = writer.source
    text: list[str] = []
    expected: list[str] = []
    quote = ""
    while (char := (yield from source.peek())) and len(text) < MAX_VALUE_CHARS:
        if not quote and not expected and char in ",)":
            return "".join(text)
        text.append(source.take(1))
        if quote and char == "\\" and (yield from source.wait()):
            text.append(source.take(1))
        elif quote:
            if char == quote[0] and (yield from source.accept(quote[1:])):
                text.append(quote[1:])
                quote = ""
        elif char in "\"'":
            quote = char * 3 if (yield from source.accept(char * 2)) else char
            text.append(quote[1:])
        elif char in _CLOSING:
            expected.append(_CLOSING[char])
        elif char in ")]}" and (not expected or char != expected.pop()):
            raise NotACall
    raise NotACall


def _as_json(text: str) -> str:
    """Return a literal of Python, or of JSON, as JSON. Raises NotACall."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            return to_json(ast.literal_eval(text.strip()))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    made = read_as_json(text)
    if made is None:
        raise NotACall
    return made
