"""A text that arrives in parts, and the ways in which a parser reads it.

The reading methods are generators that yield where the text so far does not decide and return once
it does. What they return depends on the text alone, never on how it was split.
"""

import re
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

Result = TypeVar("Result")
Reading: TypeAlias = Generator[None, None, Result]

SPACE = " \t\r\n"
"""White space of JSON."""
_GAP = re.compile(f"[{SPACE}]*")


class TagMatch(NamedTuple):
    """`text` comes before the tag; without a tag more may follow, unless the text has ended."""

    text: str
    tag: str | None


class TextSource:
    """Holds the text that is not read yet, and that since the mark, to which reading can return."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._is_whole = False

    def feed(self, text: str) -> None:
        """Add the next part of the text."""
        if self._mark is None:
            self._text, self._at = self._text[self._at :], 0
        self._text += text

    def end(self) -> None:
        """Note that no more text comes."""
        self._is_whole = True

    @property
    def at_end(self) -> bool:
        return self._is_whole and self._at == len(self._text)

    @property
    def num_since_mark(self) -> int:
        """The characters that were read since the mark."""
        return 0 if self._mark is None else self._at - self._mark

    def mark(self) -> None:
        """Make here the place that `rewind` returns to."""
        self._mark = self._at

    def unmark(self) -> None:
        """Make final what was read."""
        self._mark = None

    def rewind(self) -> None:
        """Return to the mark, if there is one, and remove it."""
        self._at = self._at if self._mark is None else self._mark
        self._mark = None

    def rest(self) -> str:
        """Return what has come and is not read."""
        return self._text[self._at :]

    def take(self, number: int) -> str:
        """Read characters that have come."""
        taken = self._text[self._at : self._at + number]
        self._at += number
        return taken

    def wait(self) -> Reading[bool]:
        """Return True once a character has come, False where the text has ended."""
        while self._at == len(self._text):
            if self._is_whole:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """Return the next character, unread; an empty string at the end."""
        return self._text[self._at] if (yield from self.wait()) else ""

    def skip_space(self) -> Reading[None]:
        while (yield from self.peek()) in (*SPACE,):
            self._at += 1

    def comes(self, tag: str) -> Reading[bool]:
        """Return whether a tag comes next, and read nothing."""
        while not self._text.startswith(tag, self._at):
            if self._is_whole or not tag.startswith(self.rest()):
                return False
            yield
        return True

    def comes_before(self, tag: str, after: Sequence[str]) -> Reading[bool | None]:
        """Return whether white space and one of the tags `after` follow a tag that has come, None
        where the text ends before that is known; read nothing."""
        longest = max(map(len, after))
        while True:
            gap = _GAP.match(self._text, self._at + len(tag))
            start = len(self._text) if gap is None else gap.end()
            rest = self._text[start : start + longest]
            if any(rest.startswith(each) for each in after):
                return True
            if not any(each.startswith(rest) for each in after):
                return False
            if self._is_whole:
                return None
            yield

    def accept(self, tag: str) -> Reading[bool]:
        """Read a tag and return True where it comes next; otherwise read nothing."""
        comes = yield from self.comes(tag)
        self._at += len(tag) if comes else 0
        return comes

    def read_until(self, tags: Sequence[str]) -> Reading[TagMatch]:
        """Read up to the first of the tags, which is left unread, or as much as certainly has no
        tag in it."""
        if not (yield from self.wait()):
            return TagMatch("", None)
        while True:
            starts = [(self._text.find(tag, self._at), -len(tag), tag) for tag in tags]
            found = min((each for each in starts if each[0] >= 0), default=None)
            if found is not None and not self._may_grow(found[0], tags):
                return TagMatch(self.take(found[0] - self._at), found[2])
            end = len(self._text) - self._num_held(tags) if found is None else found[0]
            num_free = end - self._at
            if num_free:
                return TagMatch(self.take(num_free), None)
            yield

    def _may_grow(self, start: int, tags: Sequence[str]) -> bool:
        """Return whether a longer tag may come where one has come."""
        rest = self._text[start:]
        return not self._is_whole and any(
            len(tag) > len(rest) and tag.startswith(rest) for tag in tags
        )

    def _num_held(self, tags: Sequence[str]) -> int:
        """Return the length of the longest end of the text that may become a tag."""
        if self._is_whole:
            return 0
        longest = min(max(map(len, tags), default=1) - 1, len(self._text) - self._at)
        ends = (self._text[len(self._text) - number :] for number in range(longest, 0, -1))
        return next((len(end) for end in ends if any(tag.startswith(end) for tag in tags)), 0)
