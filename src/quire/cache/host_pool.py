"""Blocks of the host's memory: what was evicted from the device or swapped out, by ids and keys.

    free  --put-->  cached  --claim-->  claimed      under a key; the oldest cached one goes first
    free  --take->  private                          of one swapped request, under no key

A swapped request claims the keys of its sealed blocks, wherever they are now: those still on the
device come here when they are evicted there, and then find room. So the claims and the private
blocks together are never more than the pool.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from quire.cache.block_pool import AccountsError
from quire.cache.chain import Content


class HostPool:
    """`on_evict` is told the key and the content of each block that can be found no more."""

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

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_swapped(self) -> int:
        """Blocks that swapped requests wait with."""
        return len(self._retained) + len(self._private)

    def find(self, key: bytes) -> int | None:
        return self._cached.get(key, self._retained.get(key))

    def content_under(self, key: bytes) -> Content | None:
        block_id = self.find(key)
        return None if block_id is None else self._content_of[block_id]

    def place_of(self, key: bytes) -> int:
        """Of a key that is here."""
        block_id = self.find(key)
        if block_id is None:
            raise AccountsError("a key is not on the host, where it was just found")
        return block_id

    def retain(self, keys: Sequence[bytes], num_private: int) -> list[int] | None:
        """Room for all blocks of a request that is swapped out: its private blocks are given at
        once, in their order. None, and nothing done, if it is too much.
        """
        num_new = sum(1 for key in keys if key not in self._num_retainers)
        num_promised = len(self._num_retainers) + len(self._private) + num_new + num_private
        if num_promised > self._num_blocks:
            return None
        for key in keys:
            self._num_retainers[key] = self._num_retainers.get(key, 0) + 1
            if key in self._cached:
                self._retained[key] = self._cached.pop(key)
        taken = [self._take() for _ in range(num_private)]
        self._private.update(taken)
        return taken

    def release(self, keys: Iterable[bytes], private: Iterable[int]) -> None:
        """The request is back on the device, or gone. What has a key stays for others."""
        for key in keys:
            if key not in self._num_retainers:
                raise AccountsError("a key is disclaimed that nobody claims")
            self._num_retainers[key] -= 1
            if not self._num_retainers[key]:
                del self._num_retainers[key]
                if key in self._retained:
                    self._cached[key] = self._retained.pop(key)
        for block_id in private:
            if block_id not in self._private:
                raise AccountsError(f"host block {block_id} is given back but nobody holds it")
            self._private.remove(block_id)
            self._free.append(block_id)

    @property
    def retained_keys(self) -> Collection[bytes]:
        """The keys that swapped requests need, wherever they are now."""
        return self._num_retainers.keys()

    def is_retained(self, key: bytes) -> bool:
        """Whether a swapped request needs it."""
        return key in self._num_retainers

    def put(self, key: bytes, content: Content) -> int | None:
        """Where to copy the block that is evicted from the device under this key; None if it is
        here already, or if all that is here is worth more.
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
        """Forget every key and every claim; private blocks stay."""
        self._free += [*self._cached.values(), *self._retained.values()]
        self._cached.clear()
        self._retained.clear()
        self._num_retainers.clear()
        self._content_of.clear()

    def check(self) -> None:
        """Raise AccountsError unless every block is in one state and every promise can be kept."""
        states = [*self._free, *self._cached.values(), *self._retained.values(), *self._private]
        if sorted(states) != list(range(self._num_blocks)):
            raise AccountsError("a host block is in no state or in two")
        if len(self._num_retainers) + len(self._private) > self._num_blocks:
            raise AccountsError("more host blocks are promised than there are")
        if {*self._cached.values(), *self._retained.values()} != self._content_of.keys():
            raise AccountsError("the contents of a host block are not known")
        if (
            self._retained.keys() - self._num_retainers.keys()
            or self._cached.keys() & self._num_retainers.keys()
        ):
            raise AccountsError("a host block is claimed by nobody, or not kept for its claim")

    def _take(self) -> int:
        """A free block, or the oldest cached one's."""
        if not self._free:
            key = next(iter(self._cached))
            block_id = self._cached.pop(key)
            self._on_evict(key, self._content_of.pop(block_id))
            self._free.append(block_id)
        return self._free.pop()
