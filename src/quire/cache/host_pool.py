"""The blocks of host memory, by ids and keys: what was evicted from the device or swapped out.

    free  --put-->  cached  --retain-->  retained    under a key; the oldest cached one goes first
    free  --take->  private                          of one swapped request, under no key

A swapped request retains the keys of its cached blocks, wherever they are now: those still on the
device come here when they are evicted there, and then find a free block. So the retained keys and
the private blocks together are never more than the pool has blocks.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from quire.cache.block_pool import AccountsError, BlockState
from quire.cache.chain import Content
from quire.cache.charges.payers import NOBODY, Payers


class HostUsage(NamedTuple):
    """Numbers of host blocks: cached ones, those of swapped requests, and those reserved for
    swapped requests, some of which may still be on the device."""

    cached: int
    swapped: int
    promised: int


class HostPool:
    """Keeps blocks of `num_blocks` in host memory. `on_evict` is called with the key and the
    content of each block that can be found no more. `payers` has the payer of each retained key and
    each private block."""

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[bytes, Content], None] = lambda key, content: None,
    ) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_blocks = num_blocks
        self._cached: dict[bytes, int] = {}
        self._retained: dict[bytes, int] = {}
        self._num_retainers: dict[bytes, int] = {}
        self._private: set[int] = set()
        self._content_of: dict[int, Content] = {}
        self._on_evict = on_evict
        self.payers = Payers[int | bytes]()

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def usage(self) -> HostUsage:
        """The blocks by state."""
        num_swapped = len(self._retained) + len(self._private)
        return HostUsage(len(self._cached), num_swapped, self._num_promised)

    @property
    def _num_promised(self) -> int:
        return len(self._num_retainers) + len(self._private)

    def states(self) -> bytearray:
        """Return the `BlockState` of each block, a byte each."""
        few, many, named = self._free, BlockState.HOST_CACHED, BlockState.HOST_FREE
        if len(self._cached) < len(self._free):
            few, many, named = list(self._cached.values()), named, many
        states = bytearray((many,)) * self._num_blocks
        for block_id in few:
            states[block_id] = named
        for block_id in (*self._retained.values(), *self._private):
            states[block_id] = BlockState.SWAPPED
        return states

    def find(self, key: bytes) -> int | None:
        """Return the block under `key`, or None if it is not on the host."""
        return self._cached.get(key, self._retained.get(key))

    def content_under(self, key: bytes) -> Content | None:
        """Return the content of the block under `key`, or None if it is not on the host."""
        block_id = self.find(key)
        return None if block_id is None else self._content_of[block_id]

    def block_of(self, key: bytes) -> int:
        """Return the block of a key that is on the host. Raises AccountsError if it is not."""
        block_id = self.find(key)
        if block_id is None:
            raise AccountsError("a key is not on the host, where it was just found")
        return block_id

    def retain(
        self, keys: Sequence[bytes], num_private: int, payer: str = NOBODY
    ) -> list[int] | None:
        """Keep all blocks of a request that is swapped out, and return its `num_private` private
        blocks; or return None, and do nothing, if that is more than the pool has left.
        """
        num_new = sum(1 for key in keys if key not in self._num_retainers)
        if self._num_promised + num_new + num_private > self._num_blocks:
            return None
        for key in keys:
            num_retainers = self._num_retainers.get(key, 0)
            self._num_retainers[key] = num_retainers + 1
            if num_retainers:
                self.payers.share(key, payer, num_retainers)
            else:
                self.payers.take_one(key, payer)
            if key in self._cached:
                self._retained[key] = self._cached.pop(key)
        taken = [self._take() for _ in range(num_private)]
        self._private.update(taken)
        self.payers.take(list(taken), payer)
        return taken

    def release(self, keys: Iterable[bytes], private: Iterable[int], payer: str = NOBODY) -> None:
        """Drop the blocks that a request retained, because it is back on the device or gone. Blocks
        with a key stay cached. Raises AccountsError for blocks that are not retained."""
        for key in keys:
            if key not in self._num_retainers:
                raise AccountsError("a key is released that nobody retains")
            self._num_retainers[key] -= 1
            if self._num_retainers[key]:
                self.payers.drop(key, payer)
                continue
            del self._num_retainers[key]
            self.payers.free([key], payer)
            if key in self._retained:
                self._cached[key] = self._retained.pop(key)
        for block_id in private:
            if block_id not in self._private:
                raise AccountsError(f"host block {block_id} is given back but nobody holds it")
            self._private.remove(block_id)
            self.payers.free([block_id], payer)
            self._free.append(block_id)

    @property
    def retained_keys(self) -> Collection[bytes]:
        """The keys that swapped requests need, wherever their blocks are now."""
        return self._num_retainers.keys()

    def is_retained(self, key: bytes) -> bool:
        """Return whether a swapped request needs the block under `key`."""
        return key in self._num_retainers

    def put(self, key: bytes, content: Content) -> int | None:
        """Return the host block to which the block evicted from the device under this key is to be
        copied; or None if it is here already, or if all that is here is worth more.
        """
        if key in self._retained:
            return None
        if key in self._cached:
            self._cached[key] = self._cached.pop(key)  # the newest again
            return None
        if not self._free and not self._cached:
            return None
        block_id = self._take()
        self._content_of[block_id] = content
        (self._retained if key in self._num_retainers else self._cached)[key] = block_id
        return block_id

    def clear(self) -> None:
        """Forget every key, retained or not; private blocks stay."""
        self._free += [*self._cached.values(), *self._retained.values()]
        self._cached.clear()
        self._retained.clear()
        self.payers.clear(self._num_retainers)
        self._num_retainers.clear()
        self._content_of.clear()

    def check(self) -> None:
        """Raise AccountsError unless every block is in one state and every promise can be kept."""
        states = [*self._free, *self._cached.values(), *self._retained.values(), *self._private]
        if sorted(states) != list(range(self._num_blocks)):
            raise AccountsError("a host block is in no state or in two")
        if self._num_promised > self._num_blocks:
            raise AccountsError("more host blocks are promised than there are")
        if len(self.payers) != self._num_promised:
            raise AccountsError("a promised host block has no payer, or another one has one")
        if {*self._cached.values(), *self._retained.values()} != self._content_of.keys():
            raise AccountsError("the contents of a host block are not known")
        if (
            self._retained.keys() - self._num_retainers.keys()
            or self._cached.keys() & self._num_retainers.keys()
        ):
            raise AccountsError("a host block is retained for nobody, or not kept for who needs it")

    def _take(self) -> int:
        """Return a free block, or that of the oldest cached one, which is evicted."""
        if not self._free:
            key = next(iter(self._cached))
            block_id = self._cached.pop(key)
            self._on_evict(key, self._content_of.pop(block_id))
            self._free.append(block_id)
        return self._free.pop()
