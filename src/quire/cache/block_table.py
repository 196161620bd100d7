"""The blocks of one request: append-only lists of ids, one for each layer group, and the chain of
its full blocks.
"""

from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.block_pool import NULL_BLOCK
from quire.cache.chain import Chain
from quire.cache.charges.payers import NOBODY
from quire.cache.sharing import SharingTerms
from quire.cache.states.state_table import StateTable


class Swap(NamedTuple):
    """The blocks that a swapped request resumes with, each by group and index in its table.

    `retained` blocks are found by their keys, on the device or the host; `private` ones were copied
    to the host. Together they hold `num_computed` tokens. `epoch` is that of the table: a reset
    after it voids what is retained. `state_id` is the host's state after these tokens, for a model
    with recurrent layers.
    """

    num_computed: int
    epoch: int
    retained: tuple[tuple[int, int, bytes], ...]
    private: tuple[tuple[int, int, int], ...]
    state_id: int | None = None

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(key for _, _, key in self.retained)


@dataclass(slots=True, eq=False)
class BlockTable:
    """The block ids of one request, by layer group. Only the cache writes a table.

    The null block stands where a group needs its tokens no more: in the first `num_passed` entries
    of that group. Every group has `num_covered` entries. The leading `num_cached_blocks` blocks
    have entered the prefix cache; blocks that were taken before the cache was last reset (`epoch`)
    never do. `states` are those of recurrent layers, while it holds any. `swap` is set while the
    request is swapped out. `num_from_host` tokens were found on
    the host when it was admitted. `payer` is charged for the blocks, once per block. `name`
    identifies the table in traces; the cache makes nothing of it.
    """

    block_ids: tuple[list[int], ...]
    num_passed: list[int]
    chain: Chain
    num_cached_blocks: int = 0
    num_covered: int = 0
    epoch: int = 0
    swap: Swap | None = None
    num_from_host: int = 0
    payer: str = NOBODY
    name: str = ""
    states: StateTable | None = None

    @property
    def sharing(self) -> SharingTerms:
        return self.chain.sharing


def tail_first(block_ids: tuple[list[int], ...]) -> list[int]:
    """Return all blocks of a table in all groups, those of the last tokens first."""
    if len(block_ids) == 1:
        ordered = block_ids[0][::-1]
    else:
        longest = max(map(len, block_ids), default=0)
        ordered = [
            ids[index]
            for index in range(longest - 1, -1, -1)
            for ids in block_ids
            if index < len(ids)
        ]
    return [block_id for block_id in ordered if block_id != NULL_BLOCK]
