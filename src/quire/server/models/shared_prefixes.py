"""The prompt prefixes that the operator makes public: all tenants may share their blocks."""

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from quire.server.text.tokenizer import TextTokenizer


class SharedPrefixError(Exception):
    """The file cannot be used; the text names it, the line and the reason."""


class SharedPrefixes:
    """The shared prefixes in tokens, sorted: the prefix that has most in common with a prompt is
    next to where the prompt would be."""

    def __init__(self, prefixes: Iterable[tuple[int, ...]] = ()) -> None:
        self._prefixes = sorted(set(prefixes))

    def num_shared(self, token_ids: tuple[int, ...]) -> int:
        """Return the most leading tokens that the prompt has in common with any of them."""
        index = bisect(self._prefixes, token_ids)
        neighbours = self._prefixes[max(index - 1, 0) : index + 1]
        return max((_num_common(token_ids, each) for each in neighbours), default=0)


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


ReadPrefixes: TypeAlias = Callable[[str, TextTokenizer], SharedPrefixes]
"""Reads the file of prefixes at a path. Raises SharedPrefixError."""
