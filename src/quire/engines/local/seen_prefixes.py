"""Remembers which prompts an engine was given, by the blocks that they begin with, so that a prompt
can go where most of it was seen.

What is kept of a block is a number that depends on it, on all before it and on whom it is shared
with. Two that are equal by chance cost a wrong guess and nothing else.
"""

from collections import OrderedDict
from collections.abc import Sequence

from quire.scheduler.request import NewRequest

MAX_KEPT_TOKENS = 4096
"""So many leading tokens of a prompt are kept: enough to tell prompts apart."""


def prefix_keys(request: NewRequest, block_size: int) -> list[int]:
    """Return a number for each full block of the beginning of the prompt, equal where blocks could
    be shared; none if nothing that is cached may be left out of the request."""
    if request.needs_all_rows:
        return []
    token_ids, terms = request.prompt_token_ids, request.sharing
    key, own = hash(terms.adapter), hash((terms.salt, terms.items))
    keys = []
    for end in range(block_size, min(len(token_ids), MAX_KEPT_TOKENS) + 1, block_size):
        block = token_ids[end - block_size : end]
        key = hash((key, block) if end <= terms.num_public_tokens else (key, own, block))
        keys.append(key)
    return keys


class SeenPrefixes:
    """The blocks that one engine was given, at most `capacity`. Those are forgotten first that were
    given longest ago, of a prompt the last ones."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[int, None] = OrderedDict()

    def num_matched(self, keys: Sequence[int]) -> int:
        """Return how many of a prompt's first blocks are remembered."""
        seen = self._keys
        return next((index for index, key in enumerate(keys) if key not in seen), len(keys))

    def add(self, keys: Sequence[int]) -> None:
        """Remember the blocks of a prompt."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._capacity:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """Forget all: nothing is cached any more."""
        self._keys.clear()
