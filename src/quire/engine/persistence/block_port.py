"""The way of blocks and states between the engine's memory and rows on the host. It is used between
steps, when no block copies are under way that were not handed to the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.cache.block_hash import STATE_GROUP
from quire.cache.chain import Chain
from quire.cache.kv_cache import KVCache
from quire.cache.transfers import BlockPosition, Transfers
from quire.models.batch import Model
from quire.models.block_rows import BlockRows
from quire.scheduler.prefix_waits import PrefixLoads


@dataclass(frozen=True, slots=True)
class BlockPort:
    """Writes blocks and states into the prefix cache, and reads cached ones. A model without
    attention has no `block_rows`, and one without recurrent layers no `state_rows`."""

    cache: KVCache
    transfers: Transfers
    loads: PrefixLoads
    model: Model
    block_rows: BlockRows | None
    state_rows: BlockRows | None

    def rows_of(self, group: int) -> BlockRows:
        """Return the rows of blocks of a layer group, or those of states."""
        rows = self.state_rows if group == STATE_GROUP else self.block_rows
        assert rows is not None, "only what a model keeps is stored"
        return rows

    def num_bytes(self, places: Sequence[BlockPosition]) -> int:
        """Return the bytes of the rows of these places."""
        return sum(self.rows_of(place.group).row_bytes for place in places)

    def take_in(
        self, chain: Chain, places: Sequence[BlockPosition], rows: Tensor, name: str
    ) -> int:
        """Let the blocks of `places`, whose bytes are the first of `rows`, be found in the prefix
        cache; or states, if all places are such. Return how many of them are there now: fewer where
        memory is short. `name` is that of the request that waits for them."""
        if not places:
            return 0
        taken = self.transfers.take_in(chain, places, name)
        ids = [each.block_id for each in taken]
        copies = self.cache.take_block_copies()
        self.loads.note_copies(copies)
        new_blocks = () if places[0].group == STATE_GROUP else ids
        if copies or new_blocks:
            self.model.copy_blocks(copies, new_blocks)  # what they held goes to the host before
        if ids:
            positions = [each.position for each in taken]
            if positions != list(range(len(positions))):
                rows = rows.index_select(0, torch.tensor(positions))
            self.rows_of(places[0].group).write(rows, ids)
        return sum(map(self.transfers.is_here, places))


def row_views(rows: Tensor, num_rows: int) -> list[memoryview]:
    """Return the bytes of the first rows."""
    return [memoryview(row.numpy()) for row in rows[:num_rows]]
