"""Suggests what somebody may have meant by an unknown name."""

import difflib
from collections.abc import Iterable

MAX_CHARS = 200
"""Longer names are compared by their beginnings: the time taken grows with the square."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, None if none is like it."""
    close = difflib.get_close_matches(name[:MAX_CHARS], list(known), n=1)
    return close[0] if close else None
