"""Finds stop strings across token boundaries: the first one to be completed ends the text.

Fed any split of a text, `StopStringMatcher` gives out the same characters: all but the longest
suffix that could still become a stop string.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StopStringScan(NamedTuple):
    """`text` may be sent now; `stop` is the stop string that ended it, if one did."""

    text: str
    stop: str | None


class StopStringTable:
    """The stop strings of a request, prepared once for all of its outputs.

    Knuth-Morris-Pratt: `fallbacks` holds for each stop string, and for each of its prefixes, the
    length of the longest proper prefix that is also a suffix.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        # The longest first: of two stop strings completed by one character, it begins first.
        self.stops = tuple(sorted(set(stops), key=len, reverse=True))
        self.fallbacks = tuple(_fallbacks(stop) for stop in self.stops)
        self.include_stop = include_stop


def _fallbacks(stop: str) -> list[int]:
    """Return for each prefix the length of its longest proper prefix that is also its suffix."""
    lengths = [0]
    for character in stop[1:]:
        length = lengths[-1]
        while length and stop[length] != character:
            length = lengths[length - 1]
        lengths.append(length + (stop[length] == character))
    return lengths


class StopStringMatcher:
    """Holds the text of one output back until it cannot belong to a stop string any more."""

    def __init__(self, table: StopStringTable) -> None:
        self._table = table
        self._num_matched = [0] * len(table.stops)
        self._held = ""

    def feed(self, text: str) -> StopStringScan:
        """Take the next text; return what of all so far may be sent."""
        stops = self._table.stops
        if not stops:
            return StopStringScan(text, None)
        ends = [(end, stop) for n, stop in enumerate(stops) if (end := self._match(n, text))]
        text = self._held + text
        if ends:
            end, stop = min(ends, key=lambda each: each[0])
            return self._cut(text, len(self._held) + end, stop)
        split = len(text) - max(self._num_matched)
        self._held = text[split:]
        return StopStringScan(text[:split], None)

    def _match(self, number: int, text: str) -> int | None:
        """Return the index after the character that completes this stop string; None if none
        does."""
        stop, matched = self._table.stops[number], self._num_matched[number]
        if matched == 0 and stop[0] not in text:
            return None
        fallbacks = self._table.fallbacks[number]
        for index, character in enumerate(text):
            while matched and stop[matched] != character:
                matched = fallbacks[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                return index + 1
        self._num_matched[number] = matched
        return None

    def _cut(self, text: str, end: int, stop: str) -> StopStringScan:
        self._held = ""
        return StopStringScan(text[: end if self._table.include_stop else end - len(stop)], stop)

    def flush(self) -> str:
        """Return what was held back: no stop string came."""
        held, self._held = self._held, ""
        return held
