"""Stop strings across token boundaries: the first one to be completed ends the text.

Fed any split of a text, `StopStrings` gives out the same characters: all but the longest suffix
that could still become a stop string.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Scan(NamedTuple):
    """`text` may be given out now; `stop` is the stop string that ended it, if one did."""

    text: str
    stop: str | None


class _Matcher:
    """Knuth-Morris-Pratt: how many characters of the stop string the text now ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._fallback = _fallbacks(stop)

    def feed(self, text: str) -> int | None:
        """The index after the character that completes the stop string."""
        if self.num_matched == 0 and self.stop[0] not in text:
            return None
        stop, matched = self.stop, self.num_matched
        for index, character in enumerate(text):
            while matched and stop[matched] != character:
                matched = self._fallback[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                return index + 1
        self.num_matched = matched
        return None


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    lengths = [0]
    for character in stop[1:]:
        length = lengths[-1]
        while length and stop[length] != character:
            length = lengths[length - 1]
        lengths.append(length + (stop[length] == character))
    return lengths


class StopStrings:
    """Holds text back until it cannot belong to a stop string any more."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        # The longest first: of two stop strings completed by one character, it begins first.
        longest_first = sorted(set(stops), key=len, reverse=True)
        self._matchers = [_Matcher(stop) for stop in longest_first]
        self._include_stop = include_stop
        self._held = ""

    def feed(self, text: str) -> Scan:
        if not self._matchers:
            return Scan(text, None)
        ends = [(end, m.stop) for m in self._matchers if (end := m.feed(text)) is not None]
        text = self._held + text
        if ends:
            end, stop = min(ends, key=lambda each: each[0])
            return self._cut(text, len(self._held) + end, stop)
        num_held = max(matcher.num_matched for matcher in self._matchers)
        split = len(text) - num_held
        self._held = text[split:]
        return Scan(text[:split], None)

    def _cut(self, text: str, end: int, stop: str) -> Scan:
        self._held = ""
        return Scan(text[: end if self._include_stop else end - len(stop)], stop)

    def flush(self) -> str:
        """What was held back: no stop string came."""
        held, self._held = self._held, ""
        return held
