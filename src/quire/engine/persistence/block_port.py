"""The way of blocks between the engine's memory and rows on the host. It is used between steps,
when no block copies are under way that were not handed to the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.cache.chain import Chain
from quire.cache.kv_cache import KVCache
from quire.cache.transfers import BlockPosition, Transfers
from quire.models.batch import Model
from quire.models.block_rows import BlockRows
from quire.scheduler.prefix_waits import PrefixLoads


@dataclass(frozen=True, slots=True)
class BlockPort:
    """Writes blocks into the prefix cache, and reads cached ones."""

    cache: KVCache
    transfers: Transfers
    loads: PrefixLoads
    model: Model
    rows: BlockRows

    def take_in(
        self, chain: Chain, places: Sequence[BlockPosition], rows: Tensor, name: str
    ) -> int:
        """Let the blocks of `places`, whose bytes are the first of `rows`, be found in the prefix
        cache. Return how many of them are there now: fewer where memory is short. `name` is that of
        the request that waits for them."""
        taken = self.transfers.take_in(chain, places, name)
        block_ids = [each.block_id for each in taken]
        copies = self.cache.take_block_copies()
        self.loads.note_copies(copies)
        if copies or block_ids:
            self.model.copy_blocks(copies, block_ids)  # what they held goes to the host before
        if block_ids:
            positions = [each.position for each in taken]
            if positions != list(range(len(positions))):
                rows = rows.index_select(0, torch.tensor(positions))
            self.rows.write(rows, block_ids)
        return sum(self.transfers.is_here(place.key) for place in places)


def row_views(rows: Tensor, num_rows: int) -> list[memoryview]:
    """Return the bytes of the first rows."""
    return [memoryview(row.numpy()) for row in rows[:num_rows]]
