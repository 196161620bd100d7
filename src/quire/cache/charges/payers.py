"""Each held block is charged to one of its holders, so that exactly the held blocks are charged.

The payer is the first holder, while it holds the block, then the next remaining holder:

    ann takes a block     bob shares it     ann releases it     bob releases it
    charged: ann          ann               bob                 nobody
"""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

Block = TypeVar("Block", bound=int | bytes)
NOBODY = ""
"""The payer of blocks taken without a name."""


class ChargeChanges(NamedTuple):
    """By payer for how many blocks more, or less, they are charged than when these were last
    cleared, of the device and of the host."""

    device: dict[str, int]
    host: dict[str, int]


class Payers(Generic[Block]):
    """The payers of held blocks, by block key. Several references of one holder are counted; for a
    block with a single holder, only its payer is stored.

    `changes` are those of `ChargeChanges`; their reader clears them.
    """

    def __init__(self) -> None:
        self._payer_of: dict[Block, str] = {}
        self._several: dict[Block, dict[str, int]] = {}
        self.changes: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of charged blocks."""
        return len(self._payer_of)

    def take(self, blocks: list[Block], payer: str) -> None:
        """Note that `payer` takes unheld blocks."""
        if blocks:
            self._payer_of.update(dict.fromkeys(blocks, payer))
            self._change(payer, len(blocks))

    def take_one(self, block: Block, payer: str) -> None:
        """Note that `payer` takes an unheld block."""
        self._payer_of[block] = payer
        changes = self.changes
        changes[payer] = changes.get(payer, 0) + 1

    def share(self, block: Block, payer: str, num_refs: int) -> None:
        """Note that `payer` shares a block that has `num_refs` references."""
        holders, first = self._several.get(block), self._payer_of[block]
        if holders is not None:
            holders[payer] = holders.get(payer, 0) + 1
        elif payer != first:
            self._several[block] = {first: num_refs, payer: 1}

    def drop(self, block: Block, payer: str) -> None:
        """Note that `payer` holds a block once less, which others hold still, or `payer` does."""
        holders = self._several.get(block)
        if holders is None:
            return
        holders[payer] -= 1
        if holders[payer]:
            return
        del holders[payer]
        if self._payer_of[block] == payer:
            self._payer_of[block] = heir = next(iter(holders))
            self._change(payer, -1)
            self._change(heir, 1)
        if len(holders) == 1:
            del self._several[block]

    def free(self, blocks: list[Block], payer: str) -> None:
        """Note that `payer`, their only holder, releases these blocks."""
        payer_of = self._payer_of
        for block in blocks:
            del payer_of[block]
        if blocks:
            self._change(payer, -len(blocks))

    def clear(self, blocks: Iterable[Block]) -> None:
        """Note that these blocks have no holders any more."""
        for block in blocks:
            self._several.pop(block, None)
            self._change(self._payer_of.pop(block), -1)

    def _change(self, payer: str, num_blocks: int) -> None:
        self.changes[payer] = self.changes.get(payer, 0) + num_blocks
