"""The pool of states: which are free, held or found as snapshots.

A snapshot is the state after the blocks of a chain, and is found by the digest of the last of them.
Its content proves that the chain is the same. One that nobody holds may be evicted: the one that
was used long ago and saves few tokens.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.block_pool import AccountsError
from quire.cache.chain import Chain, Content
from quire.cache.states.state_use import NULL_STATE


class StateUsage(NamedTuple):
    """Numbers of states: free ones, snapshots that nobody holds, and those that are held."""

    free: int = 0
    cached: int = 0
    active: int = 0


class FoundState(NamedTuple):
    """A snapshot of the state after the first `num_blocks` of a chain."""

    state_id: int
    num_blocks: int


@dataclass(slots=True)
class Snapshot:
    """A state that can be found. Without it `num_saved` tokens more would be computed by those who
    find it: those from the snapshot `before` on, which is found by that digest. `used` is the time
    of its last use."""

    state_id: int
    content: Content
    num_blocks: int
    before: bytes | None
    num_saved: int
    used: int
    num_hits: int = 0


class StatePool:
    """Takes, shares and releases states by their ids. `is_reachable` says whether the K and V of a
    block can be found: a snapshot after one that cannot is evicted first."""

    def __init__(
        self, num_states: int, gain_weight: float, is_reachable: Callable[[Content], bool]
    ) -> None:
        self._free = list(range(num_states - 1, NULL_STATE, -1))
        self._num_refs = [0] * num_states
        self._snapshots: dict[bytes, Snapshot] = {}
        self._digest_of: dict[int, bytes] = {}
        self._gain_weight = gain_weight
        self._is_reachable = is_reachable
        self._time = 0

    @property
    def num_usable(self) -> int:
        return len(self._num_refs) - 1

    @property
    def usage(self) -> StateUsage:
        free = len(self._free)
        cached = sum(1 for state_id in self._digest_of if not self._num_refs[state_id])
        return StateUsage(free, cached, self.num_usable - free - cached)

    def take(self) -> int | None:
        """Return a state with one reference, or None if all are held."""
        if not self._free and not self._evict():
            return None
        state_id = self._free.pop()
        self._num_refs[state_id] = 1
        return state_id

    def share(self, state_id: int) -> None:
        """Add a reference to a state that is held or found."""
        if not self._num_refs[state_id] and state_id not in self._digest_of:
            raise AccountsError(f"state {state_id} is free and cannot be shared")
        self._num_refs[state_id] += 1

    def release(self, state_id: int) -> None:
        """Drop one reference. Raises AccountsError for a state that nobody holds."""
        if not self._num_refs[state_id]:
            raise AccountsError(f"state {state_id} is released but nobody holds it")
        self._num_refs[state_id] -= 1
        if self._num_refs[state_id]:
            return
        digest = self._digest_of.get(state_id)
        if digest is None:
            self._free.append(state_id)
        else:
            self._snapshots[digest].used = self._tick()

    def keep(self, state_id: int, chain: Chain, num_blocks: int, num_saved_blocks: int) -> bool:
        """Let a held state be found as that after the first `num_blocks` of `chain`; the snapshot
        before it is after `num_saved_blocks`. Return False where one is found there already."""
        digest = chain.digests[num_blocks - 1]
        if digest in self._snapshots:
            return False
        before = chain.digests[num_saved_blocks - 1] if num_saved_blocks else None
        self._snapshots[digest] = Snapshot(
            state_id,
            chain.content(num_blocks - 1),
            num_blocks,
            before,
            num_blocks - num_saved_blocks,
            self._tick(),
        )
        self._digest_of[state_id] = digest
        return True

    def find(self, chain: Chain, max_blocks: int) -> FoundState | None:
        """Return the snapshot after the most blocks of `chain`, `max_blocks` at most."""
        digests = chain.digests
        found = (
            each
            for each in self._snapshots.values()
            if each.num_blocks <= max_blocks
            and digests[each.num_blocks - 1] == each.content.digest
            and chain.matches(each.content, each.num_blocks - 1)
        )
        longest = max(found, key=lambda each: each.num_blocks, default=None)
        return None if longest is None else FoundState(longest.state_id, longest.num_blocks)

    def note_hit(self, state_id: int) -> None:
        """Note that a request goes on from a snapshot."""
        snapshot = self._snapshots[self._digest_of[state_id]]
        snapshot.num_hits += 1
        snapshot.used = self._tick()

    def supersede(self, digest: bytes) -> None:
        """Free a snapshot that another takes the place of, unless somebody holds it or has gone on
        from it."""
        snapshot = self._snapshots.get(digest)
        if snapshot is None or snapshot.num_hits or self._num_refs[snapshot.state_id]:
            return
        self._remove(digest)

    def forget(self) -> None:
        """Let nothing be found any more."""
        for digest in tuple(self._snapshots):
            state_id = self._snapshots.pop(digest).state_id
            del self._digest_of[state_id]
            if not self._num_refs[state_id]:
                self._free.append(state_id)

    def check(self, holders: Counter[int]) -> None:
        """Raise AccountsError unless each state has the references that `holders` says, and is
        free, or held, or found."""
        for state_id, num_refs in enumerate(self._num_refs):
            if num_refs != holders[state_id]:
                raise AccountsError(
                    f"state {state_id}: {num_refs} references, {holders[state_id]} holders"
                )
        if len({*self._free}) != len(self._free):
            raise AccountsError("a state is free twice")
        known = {*self._digest_of, *holders}
        if known & {*self._free} or len(known) + len(self._free) != self.num_usable:
            raise AccountsError("a state is in no place or in two: free, held or found")
        for digest, snapshot in self._snapshots.items():
            if self._digest_of[snapshot.state_id] != digest:
                raise AccountsError(f"state {snapshot.state_id} is found by another's digest")
        if len(self._snapshots) != len(self._digest_of):
            raise AccountsError("a snapshot cannot be found")

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _evict(self) -> bool:
        """Free the snapshot of the least use; return False where all are held."""
        unheld = {
            digest: each
            for digest, each in self._snapshots.items()
            if not self._num_refs[each.state_id]
        }
        if not unheld:
            return False
        oldest = min(each.used for each in unheld.values())
        span = max(self._time - oldest, 1)
        most = max(each.num_saved for each in unheld.values())

        def use(digest: bytes) -> tuple[bool, float]:
            each = unheld[digest]
            recency, gain = (each.used - oldest) / span, each.num_saved / most
            return self._is_reachable(each.content), recency + self._gain_weight * gain

        self._remove(min(unheld, key=use))
        return True

    def _remove(self, digest: bytes) -> None:
        """Free a snapshot that nobody holds; those after it save its tokens too from now on."""
        gone = self._snapshots.pop(digest)
        del self._digest_of[gone.state_id]
        self._free.append(gone.state_id)
        for each in self._snapshots.values():
            if each.before == digest:
                each.before = gone.before
                each.num_saved += gone.num_saved
