"""The input of a custom tool is text. The model writes it as the one argument of a function."""

import json
import re
from enum import Enum, auto

INPUT = "input"
"""The name of that argument."""
_TARGET = f'{{"{INPUT}":"'
_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_CHARACTERS = re.compile(r'(?:[^"\\]|\\[^u]|\\u[0-9a-fA-F]{4})*')
_HALF_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class _Place(Enum):
    """The part of the arguments that comes next."""

    OPENING = auto()
    TEXT = auto()
    AFTER_TEXT = auto()
    OTHER = auto()


class CustomInput:
    """Takes the text of an input out of a call's arguments, which come as JSON in pieces, however
    it is split.

    Further arguments after the input are no part of it. Arguments of another form are the input
    where they hold one text under another name; else the input is their JSON.
    """

    def __init__(self) -> None:
        self._place = _Place.OPENING
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return what a piece of the arguments adds to the input."""
        if self._place is _Place.AFTER_TEXT:
            return ""
        self._held += piece
        if self._place is _Place.OPENING:
            self._read_opening()
        return self._read_text() if self._place is _Place.TEXT else ""

    def end(self) -> str:
        """Return what was held back until all arguments are there."""
        held, self._held = self._held, ""
        if self._place is _Place.OTHER:
            return _text_in(held)
        return _decoded(held) if self._place is _Place.TEXT and _HALF_A_PAIR.match(held) else ""

    def _read_opening(self) -> None:
        opening = _OPENING.match(self._held)
        if opening is not None:
            self._place, self._held = _Place.TEXT, self._held[opening.end() :]
        elif not _TARGET.startswith("".join(self._held.split())):
            self._place = _Place.OTHER

    def _read_text(self) -> str:
        found = _CHARACTERS.match(self._held)
        assert found is not None
        end = found.end()
        is_closed = self._held[end : end + 1] == '"'
        half = None if is_closed else _HALF_A_PAIR.search(found[0])
        if half is not None:
            end = half.start()
        text, self._held = self._held[:end], self._held[end:]
        if is_closed:
            self._place = _Place.AFTER_TEXT
        return _decoded(text)


def _decoded(text: str) -> str:
    """Return the inside of a JSON string; halves of pairs, which no text can hold, are replaced."""
    value = json.loads(f'"{text}"', strict=False)
    assert isinstance(value, str)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text_in(arguments: str) -> str:
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(value, dict) or len(value) > 1:
        return arguments
    only = next(iter(value.values()), "")
    return only if isinstance(only, str) else arguments
