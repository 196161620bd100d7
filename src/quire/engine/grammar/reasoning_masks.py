"""The masks of the reasoning before an answer, each computed once for all requests of a grammar.

Within the reasoning the tokens that may come depend on the end of the text alone: on the part of
the closing tag, or of a character, that it ends with.

    "so a <"      ends with "<"         of "</think>": one mask, whatever came before
    "so a < b"    ends with neither                  : the mask of nearly every token
"""

from collections.abc import MutableMapping, Sequence

from torch import Tensor

from quire.scheduler.request import ReasoningTags

MAX_KEPT_MASKS = 16
"""Masks that are kept of one grammar, of 20 to 32 kB at 150,000 to 260,000 tokens: more than a tag
has parts."""


class ReasoningMasks:
    """Follows the text of one output to the end of its reasoning. `kept` are the masks of the
    grammar by the end of the text, shared with its other requests."""

    def __init__(
        self,
        tags: ReasoningTags,
        token_bytes: Sequence[bytes],
        kept: MutableMapping[bytes, Tensor],
    ) -> None:
        self._opens = tags.opens.encode()
        self._closes = tags.closes.encode()
        self._token_bytes = token_bytes
        self._kept = kept
        self._has_ended = False
        self._end = b""

    @property
    def mask(self) -> Tensor | None:
        """The mask of the next token, None if it is not known."""
        if not self._is_reasoning or self._end not in self._kept:
            return None
        self._kept[self._end] = self._kept.pop(self._end)  # used last
        return self._kept[self._end]

    def keep(self, mask: Tensor) -> None:
        """Note the mask of the next token, instead of the one whose use is longest ago where there
        are MAX_KEPT_MASKS."""
        if not self._is_reasoning:
            return
        if len(self._kept) >= MAX_KEPT_MASKS:
            del self._kept[next(iter(self._kept))]
        self._kept[self._end] = mask

    def accept(self, token_id: int) -> None:
        """Take the token that was appended to the output."""
        if self._has_ended:
            return
        text = self._end + self._token_bytes[token_id]
        if self._opens and text.startswith(self._opens):
            text, self._opens = text[len(self._opens) :], b""
        self._has_ended = not self._opens.startswith(text) if self._opens else self._closes in text
        self._end = text if self._opens else text[len(text) - self._num_undecided(text) :]

    @property
    def _is_reasoning(self) -> bool:
        return not self._has_ended and not self._opens

    def _num_undecided(self, text: bytes) -> int:
        """Return the bytes at the end of a text that begin the closing tag or a character."""
        longest = min(len(self._closes) - 1, len(text))
        lengths = range(longest, 0, -1)
        num_of_tag = next((n for n in lengths if self._closes.startswith(text[-n:])), 0)
        return max(num_of_tag, _num_of_character(text))


def _num_of_character(text: bytes) -> int:
    """Return the bytes at the end of a text that are the beginning of a character in UTF-8."""
    for number, byte in enumerate(reversed(text[-3:]), 1):
        if byte >= 0xC0:
            return number if number < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0
        if byte < 0x80:
            return 0
    return 0
