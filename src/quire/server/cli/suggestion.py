"""What somebody may have meant by a name that is not known."""

import difflib
from collections.abc import Iterable

MAX_CHARS = 200
"""Longer names are compared by their beginnings: the time taken grows with the square."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, if one is like it at all."""
    close = difflib.get_close_matches(name[:MAX_CHARS], list(known), n=1)
    return close[0] if close else None
