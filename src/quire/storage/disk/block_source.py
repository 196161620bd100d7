"""A slower store of blocks, as loading sees it."""

from collections.abc import Sequence
from typing import Protocol

from quire.storage.disk.block_header import BlockIdentity


class LookupAccounts(Protocol):
    """Accounts with `num_hits`, `num_misses`, `num_declined` and `num_loaded_tokens` at least."""

    def add(self, **counts: float) -> None:
        """Add to the fields of these names."""
        ...


class BlockSource(Protocol):
    """Blocks that can be looked up at once and read in a while: a folder, or other engines."""

    @property
    def counts(self) -> LookupAccounts: ...

    @property
    def num_blocks(self) -> int:
        """The blocks that are known; without any nothing is looked up."""
        ...

    def has(self, key: bytes) -> bool:
        """Return whether a block is there, as far as is known. It does not wait."""
        ...

    def get(self, identities: Sequence[BlockIdentity], rows: Sequence[memoryview]) -> int:
        """Read blocks into as many `rows`, up to the first that is not there or not what it should
        be, and return how many were read; the other rows mean nothing. Threads call it."""
        ...
