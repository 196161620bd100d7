"""The states in host memory: snapshots that were evicted from the device, and the states of swapped
requests.

    free  --put-->   cached    found by the digest of its last block; the one used long ago goes
    free  --take-->  swapped   of one preempted request, found by nobody, never evicted
"""

from collections import OrderedDict
from typing import NamedTuple

from quire.cache.block_pool import AccountsError
from quire.cache.chain import Chain, Content


class HostStateUsage(NamedTuple):
    """Numbers of host states: snapshots, and those of swapped requests."""

    cached: int = 0
    swapped: int = 0


class HostState(NamedTuple):
    """A snapshot of the state after the first `num_blocks` of the chain that `content` ends, with
    the kind that it has on the device."""

    state_id: int
    content: Content
    num_blocks: int
    kind: int


class HostStates:
    """Keeps `num_states` states in host memory, numbered apart from those of the device."""

    def __init__(self, num_states: int) -> None:
        self._num_states = num_states
        self._free = list(range(num_states - 1, -1, -1))
        self._cached: OrderedDict[bytes, HostState] = OrderedDict()
        self._swapped: set[int] = set()

    @property
    def num_states(self) -> int:
        return self._num_states

    @property
    def usage(self) -> HostStateUsage:
        return HostStateUsage(len(self._cached), len(self._swapped))

    def find(self, chain: Chain, max_blocks: int) -> HostState | None:
        """Return the snapshot after the most blocks of `chain`, `max_blocks` at most."""
        for digest in filter(self._cached.__contains__, reversed(chain.digests[:max_blocks])):
            each = self._cached[digest]
            last = each.num_blocks - 1
            if last < max_blocks and chain.digests[last] == digest:
                if chain.matches(each.content, last):
                    return each
        return None

    def put(self, digest: bytes, content: Content, num_blocks: int, kind: int) -> int | None:
        """Return the state to which a snapshot that is evicted from the device is to be copied; or
        None if it is here already, or if swapped requests have all states."""
        if digest in self._cached:
            self._cached.move_to_end(digest)
            return None
        state_id = self._free_one()
        if state_id is not None:
            self._cached[digest] = HostState(state_id, content, num_blocks, kind)
        return state_id

    def has(self, digest: bytes) -> bool:
        """Return whether a snapshot is found under `digest`."""
        return digest in self._cached

    def lift(self, digest: bytes) -> HostState:
        """Take a snapshot out, so that nothing evicts it until it is put back."""
        return self._cached.pop(digest)

    def put_back(self, digest: bytes, lifted: HostState) -> None:
        """Put a lifted snapshot back as the last to be evicted."""
        self._cached[digest] = lifted

    def note_lost(self, digest: bytes) -> None:
        """Evict the snapshot under `digest` before all others: its K and V are found no more."""
        if digest in self._cached:
            self._cached.move_to_end(digest, last=False)

    def take(self) -> int | None:
        """Return a state for a request that is swapped out, None if others have all of them."""
        state_id = self._free_one()
        if state_id is not None:
            self._swapped.add(state_id)
        return state_id

    def release(self, state_id: int) -> None:
        """Free the state of a swapped request. Raises AccountsError if it is of none."""
        if state_id not in self._swapped:
            raise AccountsError(f"host state {state_id} is given back but no request has it")
        self._swapped.remove(state_id)
        self._free.append(state_id)

    def clear(self) -> None:
        """Forget all snapshots; the states of swapped requests stay."""
        self._free += [each.state_id for each in self._cached.values()]
        self._cached.clear()

    def check(self) -> None:
        """Raise AccountsError unless every state is in one place."""
        cached = [each.state_id for each in self._cached.values()]
        if sorted([*self._free, *cached, *self._swapped]) != list(range(self._num_states)):
            raise AccountsError("a host state is in no place or in two: free, cached or swapped")

    def _free_one(self) -> int | None:
        """Return a free state, or that of the first snapshot to be evicted."""
        if not self._free and self._cached:
            self._free.append(self._cached.popitem(last=False)[1].state_id)
        return self._free.pop() if self._free else None
