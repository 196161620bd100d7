"""Reads one JSON value character by character (RFC 8259), so that it can be sent while it comes.

Control characters within strings, which models write and JSON does not allow, are escaped.
"""

import json
import re
from collections.abc import Callable, Mapping

from quire.server.parsers.text_source import SPACE

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_CLOSING = {"{": "}", "[": "]"}
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_DIGITS = dict.fromkeys("123456789", "9")
_KINDS = _DIGITS | {"0": "0", ".": ".", "e": "e", "E": "e", "+": "+", "-": "-"}
_NUMBERS: Mapping[str, Mapping[str, str]] = {
    "-": {"0": "0", "9": "9"},
    "0": {".": ".", "e": "e"},
    "9": {"0": "9", "9": "9", ".": ".", "e": "e"},
    ".": {"0": "f", "9": "f"},
    "f": {"0": "f", "9": "f", "e": "e"},
    "e": {"+": "+", "-": "+", "0": "x", "9": "x"},
    "+": {"0": "x", "9": "x"},
    "x": {"0": "x", "9": "x"},
}
"""For each place in a number (`-`, a leading 0, other digits, the point, digits after it, `e`, its
sign, its digits) the kinds of characters that may follow, and the places they lead to."""
_NUMBER_ENDS = "09fx"


class NotJson(ValueError):
    """The next character cannot follow those before it."""


class JsonScanner:
    """Scans one value. `is_done` once it is complete: a number is when something else follows."""

    def __init__(self) -> None:
        self.is_done = False
        self._open: list[str] = []
        self._state: Callable[[str], str | None] = self._value
        self._is_key = False
        self._rest = ""
        self._number = ""

    def scan(self, text: str) -> tuple[int, str]:
        """Return how many characters of `text` belong to the value, and these as valid JSON.

        Where a character is wrong those before it are returned; scanning on from it raises NotJson.
        """
        at, made = 0, ""
        while at < len(text) and not self.is_done:
            plain = _PLAIN.match(text, at) if self._state == self._string else None
            if plain is not None:
                at, made = plain.end(), made + plain[0]
                continue
            try:
                given = self._state(text[at])
            except NotJson:
                if at == 0:
                    raise
                break
            if given is not None:
                at, made = at + 1, made + given
        return at, made

    def _value(self, char: str) -> str:
        if char in SPACE:
            return char
        if char == '"':
            self._state, self._is_key = self._string, False
        elif char in _CLOSING:
            self._open.append(char)
            self._state = self._first_key if char == "{" else self._first_item
        elif char in _LITERALS:
            self._state, self._rest = self._literal, _LITERALS[char]
        elif char == "-" or char in "0123456789":
            self._state, self._number = self._in_number, _KINDS[char]
        else:
            raise NotJson
        return char

    def _first_item(self, char: str) -> str:
        return self._close(char) if char == "]" else self._value(char)

    def _first_key(self, char: str) -> str:
        return self._close(char) if char == "}" else self._key(char)

    def _key(self, char: str) -> str:
        if char == '"':
            self._state, self._is_key = self._string, True
        elif char not in SPACE:
            raise NotJson
        return char

    def _colon(self, char: str) -> str:
        if char == ":":
            self._state = self._value
        elif char not in SPACE:
            raise NotJson
        return char

    def _after_value(self, char: str) -> str:
        if char == _CLOSING[self._open[-1]]:
            return self._close(char)
        if char == ",":
            self._state = self._key if self._open[-1] == "{" else self._value
        elif char not in SPACE:
            raise NotJson
        return char

    def _close(self, char: str) -> str:
        self._open.pop()
        self._end_value()
        return char

    def _end_value(self) -> None:
        self._state = self._after_value
        self.is_done = not self._open

    def _string(self, char: str) -> str:
        if char == '"':
            if self._is_key:
                self._state = self._colon
            else:
                self._end_value()
        elif char == "\\":
            self._state = self._escape
        elif char < " ":
            return json.dumps(char)[1:-1]
        return char

    def _escape(self, char: str) -> str:
        if char == "u":
            self._state, self._rest = self._hex, "0000"
        elif char in '"\\/bfnrt':
            self._state = self._string
        else:
            raise NotJson
        return char

    def _hex(self, char: str) -> str:
        if char not in "0123456789abcdefABCDEF":
            raise NotJson
        self._rest = self._rest[1:]
        self._state = self._hex if self._rest else self._string
        return char

    def _literal(self, char: str) -> str:
        if char != self._rest[0]:
            raise NotJson
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return char

    def _in_number(self, char: str) -> str | None:
        following = _NUMBERS[self._number].get(_KINDS.get(char, ""))
        if following is not None:
            self._number = following
            return char
        if self._number not in _NUMBER_ENDS:
            raise NotJson
        self._end_value()
        return None
