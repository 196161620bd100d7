"""The pool of states: which are free, held or found as snapshots.

A snapshot is the state after the blocks of a chain, and is found by the digest of the last of them.
Its content proves that the chain is the same. One that nobody holds may be evicted: the one that
was used long ago, is hardly found again, and saves few tokens.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from quire.cache.block_pool import AccountsError
from quire.cache.chain import Chain, Content
from quire.cache.states.planned_places import PlannedPlaces
from quire.cache.states.policy import SnapshotPolicy
from quire.cache.states.state_use import NULL_STATE

PLACES_PER_STATE, LEAST_PLACES = 16, 4096
"""So many places are remembered for each state, and so many at least."""
MAX_ENTRIES = 4
"""The order of eviction is built anew where it has so many entries for each snapshot."""
MAX_REVALUED = 64
"""So many snapshots are given a greater worth, at most, to find the one to be evicted next."""
NOWHERE = b""
"""No block has this digest."""


class StateUsage(NamedTuple):
    """Numbers of states: free ones, snapshots that nobody holds, and those that are held."""

    free: int = 0
    cached: int = 0
    active: int = 0


class StateTier(StrEnum):
    """The memory where a state was found; those of swapped requests are found by these alone."""

    DEVICE = "device"
    HOST = "host"
    SWAPPED = "swapped"


class FoundState(NamedTuple):
    """A snapshot of the state after the first `num_blocks` of a chain, or the state of a swapped
    request. States of the host are numbered apart from those of the device."""

    state_id: int
    num_blocks: int
    tier: StateTier = StateTier.DEVICE


@dataclass(slots=True)
class Snapshot:
    """A state that can be found, left for the reason `kind`. Without it those who find it would
    compute `num_saved` blocks more: those from the snapshot `before` on, which is found by that
    digest. The snapshots `after` have this one before them. Prompts that would find places after it
    that have no snapshot go on from it too: `num_lent` are expected. `used` is the time of its last
    use, and `level` the priority of the last snapshot that was evicted by then. It is evicted
    before those of a greater `priority`."""

    state_id: int
    content: Content
    num_blocks: int
    kind: int
    before: bytes | None
    num_saved: int
    after: dict[bytes, None] = field(default_factory=dict)
    used: int = 0
    level: float = 0.0
    num_hits: int = 0
    num_lent: float = 0.0
    priority: float = 0.0


class StatePool:
    """Takes, shares and releases states by their ids. `is_reachable` says whether the K and V of a
    block can be found: a snapshot after one that cannot is evicted first. `offload` is called with
    the digest of each snapshot that is evicted, and says whether it can be found on the host.

    Eviction is greedy dual (Young 1994): the priority of a snapshot is the number of blocks that it
    is expected to save, beside the priority of the last one that was evicted before its last use,
    which grows: so that what is not used is evicted in the end, however much it would save. What is
    expected changes with what others do, and makes no snapshot younger. Where it has grown, this is
    seen when the snapshot would be evicted.
    """

    def __init__(
        self,
        num_states: int,
        policy: SnapshotPolicy,
        block_size: int,
        is_reachable: Callable[[Content], bool],
        offload: Callable[[bytes, Snapshot], bool] = lambda digest, snapshot: False,
    ) -> None:
        self._free = list(range(num_states - 1, NULL_STATE, -1))
        self._num_refs = [0] * num_states
        self._num_held = 0
        self._snapshots: dict[bytes, Snapshot] = {}
        self._digest_of: dict[int, bytes] = {}
        self._order: list[tuple[float, int, bytes]] = []  # a heap; may have entries of before
        self._places = PlannedPlaces(
            max(PLACES_PER_STATE * num_states, LEAST_PLACES), policy.num_rungs(block_size)
        )
        self._gain_weight = policy.gain_weight
        self._is_reachable = is_reachable
        self._offload = offload
        self._time = 0
        self._level = 0.0

    @property
    def num_usable(self) -> int:
        return len(self._num_refs) - 1

    @property
    def usage(self) -> StateUsage:
        free = len(self._free)
        return StateUsage(free, self.num_usable - free - self._num_held, self._num_held)

    @property
    def num_loadable(self) -> int:
        """The states that may be filled from a slower store: a request that goes on from one needs
        another for itself."""
        return max(self.num_usable - self._num_held - 1, 0)

    def take(self) -> int | None:
        """Return a state with one reference, or None if all are held."""
        if not self._free and not self._evict():
            return None
        state_id = self._free.pop()
        self._num_refs[state_id] = 1
        self._num_held += 1
        return state_id

    def take_for(self, kind: int, num_saved: int) -> int | None:
        """Return a state for a snapshot that would save so many blocks; None if it is worth less
        than any that would have to go, or if most states are held."""
        if not self._free:
            least = self._least()
            if least is None or 2 * self._num_held > self.num_usable:
                return None
            gain = self._places.expected_uses(NOWHERE, kind) * num_saved
            if self._level + self._gain_weight * gain < self._snapshots[least].priority:
                return None
        return self.take()

    def share(self, state_id: int) -> None:
        """Add a reference to a state that is held or found."""
        if not self._num_refs[state_id]:
            if state_id not in self._digest_of:
                raise AccountsError(f"state {state_id} is free and cannot be shared")
            self._num_held += 1
        self._num_refs[state_id] += 1

    def release(self, state_id: int) -> None:
        """Drop one reference. Raises AccountsError for a state that nobody holds."""
        if not self._num_refs[state_id]:
            raise AccountsError(f"state {state_id} is released but nobody holds it")
        self._num_refs[state_id] -= 1
        if self._num_refs[state_id]:
            return
        self._num_held -= 1
        digest = self._digest_of.get(state_id)
        if digest is None:
            self._free.append(state_id)
        else:
            self._touch(digest)

    def note_place(self, chain: Chain, num_blocks: int, kind: int, *, is_kept: bool) -> None:
        """Note where a snapshot was planned. Unless one is kept there, that before it serves."""
        digest = chain.digests[num_blocks - 1]
        self._places.add(digest, kind)
        before = None if is_kept else self._before(chain, num_blocks)
        if before is not None:
            self._snapshots[before].num_lent += self._places.expected_uses(digest, kind)
            self._revalue(before)

    def note_found(self, digests: Sequence[bytes], num_kv_blocks: int) -> bool:
        """Note a prompt of which the K and V of the first blocks were found. Return whether it
        parts there from others; else what was once computed beyond has been evicted."""
        for digest in self._places.note_found(digests[:num_kv_blocks]):
            if digest in self._snapshots:
                self._revalue(digest)
        return not self._places.has_any(digests[num_kv_blocks:])

    def _before(self, chain: Chain, num_blocks: int) -> bytes | None:
        """Return the digest of the last snapshot of a chain before the end of so many blocks."""
        above = reversed(chain.digests[: num_blocks - 1])
        return next(filter(self._snapshots.__contains__, above), None)

    def keep(self, state_id: int, chain: Chain, num_blocks: int, kind: int) -> bool:
        """Let a held state be found as that after the first `num_blocks` of `chain`. Return False
        where one is found there already."""
        digest = chain.digests[num_blocks - 1]
        if digest in self._snapshots:
            self._touch(digest)
            return False
        before = self._before(chain, num_blocks)
        start = 0 if before is None else self._snapshots[before].num_blocks
        content = chain.content(num_blocks - 1)
        num_saved = max(num_blocks - start, 1)
        found = Snapshot(state_id, content, num_blocks, kind, before, num_saved)
        self._snapshots[digest] = found
        self._digest_of[state_id] = digest
        if before is not None:
            self._snapshots[before].after[digest] = None
        self._touch(digest)
        return True

    def load(self, chain: Chain, num_blocks: int, kind: int) -> int | None:
        """Return a state that is found as that after the first `num_blocks` of `chain` from now on,
        for the caller to fill. None where one is found there already, or none can be had. Another
        stays free: snapshots may come to be held, by pins, and a request needs one of its own."""
        if chain.digests[num_blocks - 1] in self._snapshots or not self.num_loadable:
            return None
        while len(self._free) < 2 and self._evict():
            pass
        state_id = self.take()
        if state_id is not None:
            self.keep(state_id, chain, num_blocks, kind)
            self.release(state_id)
        return state_id

    def content_under(self, digest: bytes) -> Content | None:
        """Return the content of the snapshot of that digest, None if it is not found."""
        snapshot = self._snapshots.get(digest)
        return None if snapshot is None else snapshot.content

    def state_under(self, content: Content) -> int | None:
        """Return the snapshot of that very content, None if it is gone."""
        snapshot = self._snapshots.get(content.digest)
        return snapshot.state_id if snapshot and snapshot.content is content else None

    def find(self, chain: Chain, max_blocks: int) -> FoundState | None:
        """Return the snapshot after the most blocks of `chain`, `max_blocks` at most."""
        here = filter(self._snapshots.__contains__, reversed(chain.digests[:max_blocks]))
        for digest in here:
            each = self._snapshots[digest]
            last = each.num_blocks - 1
            if last < max_blocks and chain.digests[last] == digest:
                if chain.matches(each.content, last):
                    return FoundState(each.state_id, each.num_blocks)
        return None

    def note_hit(self, state_id: int) -> None:
        """Note that a request goes on from a snapshot."""
        digest = self._digest_of[state_id]
        snapshot = self._snapshots[digest]
        snapshot.num_hits += 1
        snapshot.num_lent = 0.0
        self._touch(digest)

    def expect(self, digest: bytes, num_uses: int) -> None:
        """Note that so many requests more, or fewer, are about to find the snapshot of a digest."""
        snapshot = self._snapshots.get(digest)
        if snapshot is not None:
            snapshot.num_lent = max(snapshot.num_lent + num_uses, 0.0)
            self._revalue(digest)

    def note_lost(self, digest: bytes) -> None:
        """Note that K and V of the block of that digest are no longer found."""
        snapshot = self._snapshots.get(digest)
        if snapshot is not None:
            snapshot.priority = -inf
            self._enter(digest, snapshot)

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
        self._order.clear()
        self._places.clear()
        self._level = 0.0

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
        self._check_snapshots()

    def _check_snapshots(self) -> None:
        if self._num_held != sum(map(bool, self._num_refs)):
            raise AccountsError(f"{self._num_held} states are counted as held")
        for digest, snapshot in self._snapshots.items():
            if self._digest_of[snapshot.state_id] != digest:
                raise AccountsError(f"state {snapshot.state_id} is found by another's digest")
            if snapshot.before is not None:
                if digest not in self._snapshots[snapshot.before].after:
                    raise AccountsError(f"state {snapshot.state_id} follows none before it")
        if len(self._snapshots) != len(self._digest_of):
            raise AccountsError("a snapshot cannot be found")

    def _touch(self, digest: bytes) -> None:
        """Note a use of a snapshot, which is the last now."""
        self._time += 1
        self._snapshots[digest].used = self._time
        self._snapshots[digest].level = self._level
        self._value(digest)

    def _value(self, digest: bytes) -> None:
        """Give a snapshot its priority anew."""
        each = self._snapshots[digest]
        each.priority = self._worth(digest, each)
        self._enter(digest, each)

    def _worth(self, digest: bytes, each: Snapshot) -> float:
        """Return the priority that a snapshot has by what is known now."""
        num_uses = self._places.expected_uses(digest, each.kind) + each.num_lent
        return each.level + self._gain_weight * num_uses * each.num_saved

    def _revalue(self, digest: bytes) -> None:
        """Give a snapshot its priority anew, unless it is lost with its K and V."""
        if self._snapshots[digest].priority > -inf:
            self._value(digest)

    def _enter(self, digest: bytes, snapshot: Snapshot) -> None:
        """Enter a snapshot into the order of eviction, unless it is held."""
        if self._num_refs[snapshot.state_id]:
            return
        heappush(self._order, (snapshot.priority, snapshot.used, digest))
        if len(self._order) > MAX_ENTRIES * (len(self._snapshots) + 1):
            self._sort()

    def _sort(self) -> None:
        """Build the order of eviction anew."""
        self._order = [
            (each.priority, each.used, digest)
            for digest, each in self._snapshots.items()
            if not self._num_refs[each.state_id]
        ]
        heapify(self._order)

    def _least(self) -> bytes | None:
        """Return the digest of the snapshot to be evicted next, None if all are held."""
        num_revalued = 0
        while self._order:
            priority, used, digest = self._order[0]
            each = self._snapshots.get(digest)
            if each is None or (each.priority, each.used) != (priority, used):
                heappop(self._order)
            elif self._num_refs[each.state_id]:
                heappop(self._order)
            elif priority == -inf and self._is_reachable(each.content):
                self._value(digest)
            elif -inf < priority < self._worth(digest, each) and num_revalued < MAX_REVALUED:
                num_revalued += 1
                self._value(digest)
            else:
                return digest
        return None

    def _evict(self) -> bool:
        """Free the snapshot of the least priority; return False where all are held. Unless the host
        has it, that before it serves."""
        digest = self._least()
        if digest is None:
            return False
        gone = self._snapshots[digest]
        self._level = max(self._level, gone.priority)
        is_on_host = self._offload(digest, gone)
        self._remove(digest)
        if gone.before is not None and not is_on_host:
            num_uses = self._places.expected_uses(digest, gone.kind) + gone.num_lent
            self._snapshots[gone.before].num_lent += num_uses
            self._revalue(gone.before)
        return True

    def _remove(self, digest: bytes) -> None:
        """Free a snapshot that nobody holds; those after it save its tokens too from now on."""
        gone = self._snapshots.pop(digest)
        del self._digest_of[gone.state_id]
        self._free.append(gone.state_id)
        above = None if gone.before is None else self._snapshots[gone.before].after
        if above is not None:
            del above[digest]
        for other in gone.after:
            each = self._snapshots[other]
            each.before = gone.before
            each.num_saved += gone.num_saved
            if above is not None:
                above[other] = None
            self._revalue(other)
