"""The flat pool of blocks: it knows how many references each has, which are free and which
evictable.

Every block but the null block 0 is in exactly one state:

    free  --take-->  held  --last release-->  free        (never cached)
      ^                ^------- share ------  evictable   (cached: can be found by its key)
      '--------------- evict -----------------'

The evictable blocks are evicted least recently released first, those that nobody keeps before those
that somebody does (`keep`). Metrics call this state `cached`.

One block is found under each key. Held blocks of the same content beside it are its duplicates:
when the cached one has no references left, a duplicate is cached in its place, and it is freed.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from quire.cache.chain import Content
from quire.cache.charges.payers import NOBODY, Payers
from quire.cache.evictable_list import EvictableList, EvictionRank

NULL_BLOCK = 0
"""Padding writes go to this block. It is never taken, shared or freed."""


class AccountsError(Exception):
    """The block accounts do not balance. This is a defect of Quire, never of a request."""


class BlockState(IntEnum):
    """The states of single blocks; the last three are states of host blocks, where `SWAPPED` blocks
    belong to preempted requests."""

    NULL = 0
    FREE = 1
    CACHED = 2
    PINNED = 3
    HELD = 4
    HOST_FREE = 5
    HOST_CACHED = 6
    SWAPPED = 7


class BlockUsage(NamedTuple):
    """Numbers of blocks by state; their sum is the usable pool. `cached` counts the evictable
    blocks, `active` those that requests hold and that are not `pinned`.
    """

    free: int
    cached: int
    active: int
    pinned: int = 0


_HELD_OR_FREE = bytes((BlockState.FREE, *(BlockState.HELD,) * 255))
_HELD_OR_CACHED = bytes((BlockState.CACHED, *(BlockState.HELD,) * 255))
"""The state of a block by its number of references."""


class BlockPool:
    """Takes, shares and releases blocks by their ids.

    `take` gives all or nothing. One release too many raises AccountsError. `on_evict` is called
    with each block that can be found no more, its key and its content. `payers` has the payer of
    each held block, among its named holders.
    """

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[int, bytes, Content], None] = lambda block_id, key, content: None,
    ) -> None:
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._evictable = EvictableList(num_blocks)
        self._num_refs = [0] * num_blocks
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._content_of: list[Content | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._duplicates: dict[bytes, dict[int, None]] = {}
        self._keepers: dict[bytes, list[int]] = {}
        self._on_evict = on_evict
        self.payers = Payers[int]()

    @property
    def num_usable(self) -> int:
        return len(self._num_refs) - 1

    @property
    def num_available(self) -> int:
        """The number of blocks that `take` could give: the free ones, and the evictable ones by
        eviction.
        """
        return len(self._free) + len(self._evictable)

    @property
    def usage(self) -> BlockUsage:
        free, cached = len(self._free), len(self._evictable)
        return BlockUsage(free, cached, self.num_usable - free - cached)

    def take(self, num_blocks: int, payer: str = NOBODY) -> list[int] | None:
        """Return `num_blocks` blocks with one reference each, or None, and take nothing, if there
        are fewer.
        """
        free, refs = self._free, self._num_refs
        if num_blocks > len(free):
            if num_blocks > len(free) + len(self._evictable):
                return None
            self._evict(num_blocks - len(free))
        if num_blocks == 1:
            block_id = free.pop()
            refs[block_id] = 1
            self.payers.take_one(block_id, payer)
            return [block_id]
        first = len(free) - num_blocks
        taken = free[first:]
        del free[first:]
        for block_id in taken:
            refs[block_id] = 1
        self.payers.take(taken, payer)
        return taken

    def share(self, block_ids: Iterable[int], payer: str = NOBODY) -> None:
        """Add one reference to each block; an evictable block is held again. Raises AccountsError
        for a free one.
        """
        refs, keys, evictable = self._num_refs, self._key_of, self._evictable
        unheld: list[int] = []
        for block_id in block_ids:
            num_refs = refs[block_id]
            if num_refs == 0:
                if keys[block_id] is None:
                    raise AccountsError(f"block {block_id} is free and cannot be shared")
                evictable.remove(block_id)
                unheld.append(block_id)
            else:
                self.payers.share(block_id, payer, num_refs)
            refs[block_id] = num_refs + 1
        self.payers.take(unheld, payer)

    def release(self, block_ids: Iterable[int], payer: str = NOBODY) -> None:
        """Drop one reference of each block, in the order of later eviction. Raises AccountsError
        for a block without references."""
        refs, keys, duplicates = self._num_refs, self._key_of, self._duplicates
        evictable: list[int] = []
        unheld: list[int] = []
        for block_id in block_ids:
            num_refs = refs[block_id]
            if num_refs == 0:
                raise AccountsError(f"block {block_id} is released but nobody holds it")
            refs[block_id] = num_refs - 1
            if num_refs > 1:
                self.payers.drop(block_id, payer)
            else:
                unheld.append(block_id)
                key = keys[block_id]
                if key in duplicates:
                    self._free_one_of(key, block_id)
                elif key is None:
                    self._free.append(block_id)
                else:
                    evictable.append(block_id)
        self._make_evictable(evictable)
        self.payers.free(unheld, payer)

    def cache(self, block_id: int, key: bytes, content: Content) -> bool:
        """Make a held, full block findable under `key`; return False if another one is found there
        already. Raises AccountsError for a block that nobody holds.
        """
        if self._num_refs[block_id] == 0:
            raise AccountsError(f"block {block_id} is cached but nobody holds it")
        if self._key_of[block_id] is not None or key in self._block_of:
            return False
        self._key_of[block_id] = key
        self._content_of[block_id] = content
        self._block_of[key] = block_id
        return True

    def add_duplicate(self, block_id: int, key: bytes) -> None:
        """Note that a held block has the content of the block cached under `key`. If that block has
        no references, it is freed, and this block is cached in its place."""
        if self._key_of[block_id] is not None:
            return
        found = self._block_of[key]
        self._key_of[block_id] = key
        self._content_of[block_id] = self._content_of[found]
        self._duplicates.setdefault(key, {})[block_id] = None
        if self._num_refs[found] == 0:
            self._evictable.remove(found)
            self._free_one_of(key, found)

    def forget(self) -> None:
        """Make nothing findable any more: evictable blocks become free, held ones as if they were
        never cached.
        """
        while self._evictable:
            self._free.append(self._evictable.pop_oldest())
        self._block_of.clear()
        self._duplicates.clear()
        self._keepers.clear()
        self._key_of = [None] * len(self._num_refs)
        self._content_of = [None] * len(self._num_refs)

    def keep(self, keys: Iterable[bytes], rank: EvictionRank) -> None:
        """Let what is found under these keys, now or later, be evicted behind all of a lower rank.
        The keys come in the order of later eviction."""
        for key in keys:
            self._keepers.setdefault(key, [0] * len(EvictionRank))[rank] += 1
            self._place(key)

    def let_go(self, keys: Iterable[bytes], rank: EvictionRank) -> None:
        """Take back one `keep` of each key."""
        for key in keys:
            num_keepers = self._keepers[key]
            num_keepers[rank] -= 1
            if not any(num_keepers):
                del self._keepers[key]
            self._place(key)

    def give_up(self, keys: Iterable[bytes]) -> None:
        """Let the evictable blocks under these keys, the first first, be evicted before all others,
        but for those that somebody keeps."""
        blocks = [self._block_of[key] for key in keys if key in self._block_of]
        kept, keys_of, refs = self._keepers, self._key_of, self._num_refs
        given = [each for each in blocks if not refs[each] and keys_of[each] not in kept]
        for block_id in given:
            self._evictable.remove(block_id)
        self._evictable.prepend(given)

    def num_kept(self, rank: EvictionRank) -> int:
        """Return the number of evictable blocks of a rank above PLAIN."""
        return self._evictable.num_of(rank)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Return the blocks of the leading keys that are cached, up to the first that is not."""
        block_of, found = self._block_of, []
        for key in keys:
            block_id = block_of.get(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def contents(self, keys: Iterable[bytes]) -> list[Content]:
        """Return the contents of the blocks under these keys, which must be cached."""
        block_of, content_of = self._block_of, self._content_of
        contents = [content_of[block_of[key]] for key in keys]
        return [content for content in contents if content is not None]

    def content_under(self, key: bytes) -> Content | None:
        """Return the content of the block under `key`, or None if it is not cached."""
        block_id = self._block_of.get(key)
        return None if block_id is None else self._content_of[block_id]

    def key_of(self, block_id: int) -> bytes | None:
        """Return the key under which the block's content is found, in this block or in a duplicate
        of it.
        """
        return self._key_of[block_id]

    def num_holders(self, block_id: int) -> int:
        """Return the number of references to the block."""
        return self._num_refs[block_id]

    def num_evictable(self, block_ids: Iterable[int]) -> int:
        """Return the number of these blocks without references."""
        refs = self._num_refs
        return sum(1 for block_id in block_ids if refs[block_id] == 0)

    def states(self) -> bytearray:
        """Return the `BlockState` of each block, a byte each. No block is PINNED, because the pool
        does not know pins."""
        try:
            refs = bytearray(self._num_refs)
        except ValueError:  # more than 255 hold a block
            refs = bytearray(map(bool, self._num_refs))
        is_mostly_free = len(self._free) > len(self._evictable)
        states = refs.translate(_HELD_OR_FREE if is_mostly_free else _HELD_OR_CACHED)
        rare, state = self._free, BlockState.FREE
        if is_mostly_free:
            rare, state = self._evictable.block_ids(), BlockState.CACHED
        for block_id in rare:
            states[block_id] = state
        states[NULL_BLOCK] = BlockState.NULL
        return states

    def check(self, holders: dict[int, int]) -> None:
        """Raise AccountsError unless each block has the references that `holders` says it should
        have, and every usable block is in one state.
        """
        if len(self.payers) != len(holders):
            raise AccountsError("a held block has no payer, or one that nobody holds has one")
        states = [*self._free, *self._evictable, *holders]
        if sorted(states) != list(range(1, len(self._num_refs))):
            raise AccountsError("a usable block is in no state or in two: free, evictable or held")
        for block_id, num_refs in enumerate(self._num_refs):
            if num_refs != holders.get(block_id, 0):
                wanted = holders.get(block_id, 0)
                raise AccountsError(f"block {block_id}: {num_refs} references, {wanted} holders")
        for key, block_id in self._block_of.items():
            if self._key_of[block_id] != key:
                raise AccountsError(f"block {block_id} is found under a key it does not carry")
        num_duplicates = sum(map(len, self._duplicates.values()))
        if sum(key is not None for key in self._key_of) != len(self._block_of) + num_duplicates:
            raise AccountsError("a cached block cannot be found")
        if any(self._key_of[block_id] is not None for block_id in self._free):
            raise AccountsError("a free block is still cached")
        for key, duplicates in self._duplicates.items():
            self._check_duplicates(key, duplicates)
        self._check_ranks()

    def _check_ranks(self) -> None:
        for block_id in self._evictable:
            if self._evictable.rank_of(block_id) is not self._rank(self._key_of[block_id]):
                raise AccountsError(f"block {block_id} is evicted in another rank than it is kept")

    def _rank(self, key: bytes | None) -> EvictionRank:
        """Return the highest rank in which somebody keeps what is found under a key."""
        num_keepers = None if key is None else self._keepers.get(key)
        if num_keepers is None:
            return EvictionRank.PLAIN
        return max(rank for rank in EvictionRank if num_keepers[rank])

    def _place(self, key: bytes) -> None:
        """Move the evictable block under a key, if there is one, to its rank."""
        block_id = self._block_of.get(key)
        if block_id is None or self._num_refs[block_id]:
            return
        rank = self._rank(key)
        if self._evictable.rank_of(block_id) is not rank:
            self._evictable.remove(block_id)
            self._evictable.append_to(rank, (block_id,))

    def _make_evictable(self, block_ids: list[int]) -> None:
        """Append blocks that nobody holds any more, each to those of its rank."""
        if not self._keepers:
            self._evictable.append(block_ids)
            return
        for block_id in block_ids:
            self._evictable.append_to(self._rank(self._key_of[block_id]), (block_id,))

    def _check_duplicates(self, key: bytes, duplicates: Iterable[int]) -> None:
        found = self._block_of[key]
        alike = [found, *duplicates]
        if len(alike) == 1 or len({*alike}) != len(alike):
            raise AccountsError(f"block {found} has no duplicate, or is its own")
        for block_id in alike:
            if self._key_of[block_id] != key or self._num_refs[block_id] == 0:
                raise AccountsError(
                    f"block {block_id} has a duplicate and is evictable or not cached"
                )
            if self._content_of[block_id] is not self._content_of[found]:
                raise AccountsError(f"block {block_id} has another content than its duplicate")

    def _free_one_of(self, key: bytes, block_id: int) -> None:
        """Free one of several blocks of the same content; another is found in its place."""
        duplicates = self._duplicates[key]
        if self._block_of[key] == block_id:
            self._block_of[key], _ = duplicates.popitem()
        else:
            del duplicates[block_id]
        if not duplicates:
            del self._duplicates[key]
        self._key_of[block_id] = self._content_of[block_id] = None
        self._free.append(block_id)

    def _evict(self, num_blocks: int) -> None:
        """Make the oldest evictable blocks free."""
        for _ in range(num_blocks):
            block_id = self._evictable.pop_oldest()
            key, content = self._key_of[block_id], self._content_of[block_id]
            if key is None or content is None:
                raise AccountsError(f"block {block_id} is evictable but not cached")
            del self._block_of[key]
            self._key_of[block_id] = self._content_of[block_id] = None
            self._free.append(block_id)
            self._on_evict(block_id, key, content)
