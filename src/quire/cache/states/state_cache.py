"""The states of all requests of a model with recurrent layers: one live state each, and snapshots
at planned borders of blocks, from which other requests go on.

    a prompt of 60 tokens, blocks of 16     it leaves a snapshot after 48 tokens
    a longer prompt that begins so          goes on from there, if the K and V before it are found

A snapshot costs no copy: a step leaves the state at the border in one place and goes on from it to
another, so that a state which others may read is never written.

Host memory has states too: snapshots that were evicted, which come back when they are found, and
the states of preempted requests, which go on where they were.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain, Content
from quire.cache.config import CacheConfig
from quire.cache.states.host_states import HostStates, HostStateUsage
from quire.cache.states.policy import SnapshotKind, SnapshotPlace
from quire.cache.states.state_pool import FoundState, Snapshot, StatePool, StateTier, StateUsage
from quire.cache.states.state_table import KeptState, PendingState, StateTable
from quire.cache.states.state_use import NULL_STATE, StateUse, StateWrite
from quire.cache.swapping import RecomputeCost

MAX_SEEN = 64
"""A model without attention remembers so many borders for each of its states."""


class FirstStates(NamedTuple):
    """The states that a request begins with: its own one, and the one that it reads first."""

    live: int
    current: int


class StateCache:
    """Allocates the states of all requests, and appends to `copies` those from and to the host.
    `is_reachable` says whether the K and V of a block can be found.

    K and V tell where prompts part. A model without attention, which keeps none, remembers the
    digests of what it has computed instead. `least_tokens` may be set at any time: evicted
    snapshots that save fewer are not copied to the host. `on_lasting` is called with the content of
    each snapshot that slower stores are to keep: not with that of an output that goes on, nor with
    one of a ladder that nobody has gone on from.
    """

    def __init__(
        self,
        config: CacheConfig,
        is_reachable: Callable[[Content], bool],
        copies: list[BlockCopy],
    ) -> None:
        policy = config.snapshots
        self._pool = StatePool(
            config.num_states, policy, config.block_size, is_reachable, self._offloaded
        )
        self._host = HostStates(config.num_host_states)
        self._copies = copies
        self._is_reachable = is_reachable
        self._policy = policy
        self._block_size = config.block_size
        self._is_caching = config.enable_prefix_caching
        self.on_lasting: Callable[[Content], None] | None = None
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._max_seen = MAX_SEEN * config.num_states
        self.least_tokens = 0

    @property
    def usage(self) -> StateUsage:
        """The states by what they are."""
        return self._pool.usage

    @property
    def host_usage(self) -> HostStateUsage:
        """The states in host memory by what they are."""
        return self._host.usage

    def find(self, chain: Chain, max_blocks: int, *, use_host: bool = False) -> FoundState | None:
        """Return the snapshot after the most blocks of `chain`, `max_blocks` at most. With
        `use_host` those of the host count too."""
        found = self._pool.find(chain, max_blocks)
        on_host = self._host.find(chain, max_blocks) if use_host else None
        if on_host is None or (found is not None and found.num_blocks >= on_host.num_blocks):
            return found
        return FoundState(on_host.state_id, on_host.num_blocks, StateTier.HOST)

    def tier_after(self, table: BlockTable, num_tokens: int) -> StateTier | None:
        """Return the memory of the snapshot after the last of the first `num_tokens`, None if there
        is none at all."""
        found = self.find(table.chain, num_tokens // self._block_size, use_host=True)
        return None if found is None else found.tier

    @property
    def num_loadable(self) -> int:
        """The states that may be filled from a slower store now."""
        return self._pool.num_loadable

    def load(self, chain: Chain, num_blocks: int) -> int | None:
        """Return a state that is found as that after the first `num_blocks` of `chain` from now on,
        for the caller to fill. None where one is found there already, or none can be had."""
        return self._pool.load(chain, num_blocks, SnapshotKind.PROMPT_END)

    def content_under(self, digest: bytes) -> Content | None:
        """Return the content of the snapshot of that digest, None if it is not found."""
        return self._pool.content_under(digest)

    def state_under(self, content: Content) -> int | None:
        """Return the snapshot of that very content, None if it is gone."""
        return self._pool.state_under(content)

    def expect(self, digest: bytes, num_uses: int) -> None:
        """Note that so many requests more, or fewer, are about to find the snapshot of a digest."""
        self._pool.expect(digest, num_uses)

    def num_seen(self, chain: Chain, max_blocks: int) -> int:
        """Return how many leading blocks of `chain` are remembered, `max_blocks` at most."""
        seen = (each in self._seen for each in chain.digests[:max_blocks])
        return next((index for index, known in enumerate(seen) if not known), max_blocks)

    def remember(self, chain: Chain, first: int, end: int) -> None:
        """Remember the blocks `first .. end` of a chain; the head is the last to be forgotten."""
        for digest in reversed(chain.digests[first:end]):
            self._seen[digest] = None
            self._seen.move_to_end(digest)
        while len(self._seen) > self._max_seen:
            self._seen.popitem(last=False)

    def open(
        self, table: BlockTable, found: FoundState | None, num_kv_found: int, num_tokens: int
    ) -> bool:
        """Take a live state for a request of `num_tokens`, which goes on from `found`, and plan its
        snapshots. Return False, and take nothing, where all states are held."""
        first = self._first_states(table.chain, found)
        if first is None:
            return False
        states = StateTable(
            first.live, first.current, num_known=num_tokens, num_kv_found=num_kv_found
        )
        is_resumed = found is not None and found.tier is StateTier.SWAPPED
        if found is not None:
            states.position = states.num_saved = found.num_blocks * self._block_size
        if is_resumed and table.swap is not None:
            states.position = table.swap.num_computed
            last = self._pool.find(table.chain, states.position // self._block_size)
            states.num_saved = 0 if last is None else last.num_blocks * self._block_size
        elif found is not None:
            self._tell(table.chain.digests[found.num_blocks - 1])
        if self._is_caching:
            num_kv_blocks = num_kv_found // self._block_size
            parts = not is_resumed and self._pool.note_found(table.chain.digests, num_kv_blocks)
            states.wanted = self._policy.wanted(
                num_tokens,
                states.position,
                num_kv_found if parts else 0,
                block_size=self._block_size,
            )
        table.states = states
        return True

    def _first_states(self, chain: Chain, found: FoundState | None) -> FirstStates | None:
        """Take the states that a request begins with, None where all states are held."""
        if found is not None and found.tier is StateTier.HOST:
            return self._from_host(chain, found)
        if found is not None and found.tier is StateTier.DEVICE:
            self._pool.share(found.state_id)
            live = self._pool.take()
            if live is None:
                self._pool.release(found.state_id)
                return None
            self._pool.note_hit(found.state_id)
            return FirstStates(live, found.state_id)
        live = self._pool.take()
        if live is None:
            return None
        if found is None:
            return FirstStates(live, NULL_STATE)
        self._copies.append(BlockCopy(CopyKind.STATE_IN, found.state_id, live))
        return FirstStates(live, live)

    def _from_host(self, chain: Chain, found: FoundState) -> FirstStates | None:
        """Copy a snapshot in, to a state where others find it too; where none is to be had for
        that, to the live state of the request alone. The host keeps it."""
        digest = chain.digests[found.num_blocks - 1]
        lifted = self._host.lift(digest)  # states that are taken now may evict to the host
        live = self._pool.take()
        kept = None
        if live is not None:
            before = self._pool.find(chain, found.num_blocks)
            num_saved = found.num_blocks - (0 if before is None else before.num_blocks)
            kept = self._pool.take_for(lifted.kind, num_saved)
        self._host.put_back(digest, lifted)
        if live is None:
            return None
        current = live if kept is None else kept
        self._copies.append(BlockCopy(CopyKind.STATE_IN, lifted.state_id, current))
        if kept is not None and self._pool.keep(kept, chain, found.num_blocks, lifted.kind):
            self._pool.note_hit(kept)
        return FirstStates(live, current)

    def _offloaded(self, digest: bytes, gone: Snapshot) -> bool:
        """Copy a snapshot that is evicted from the device to the host, if it is of use there.
        Return whether the host has it."""
        saves_enough = gone.num_saved * self._block_size >= self.least_tokens
        if self._host.num_states and saves_enough and self._is_reachable(gone.content):
            host_id = self._host.put(digest, gone.content, gone.num_blocks, gone.kind)
            if host_id is not None:
                self._copies.append(BlockCopy(CopyKind.STATE_OUT, gone.state_id, host_id))
        return self._host.has(digest)

    def recompute_cost(
        self, table: BlockTable, num_computed: int, cost: RecomputeCost
    ) -> RecomputeCost:
        """Return the cost of recomputing the first `num_computed` tokens, with that of their K and
        V: they are recomputed from the last snapshot on whose K and V are safe."""
        num_safe = (num_computed - cost.num_tokens) // self._block_size
        last = self.find(table.chain, num_safe, use_host=True)
        num_found = 0 if last is None else last.num_blocks * self._block_size
        return RecomputeCost(cost.num_blocks, num_computed - num_found, num_states=1)

    def swap_point(self, table: BlockTable, num_computed: int) -> int:
        """Return the most tokens of a table, `num_computed` at most, after which a swapped request
        can go on: those that its live state has seen, or, where steps ahead have moved that on,
        those before its last snapshot; 0 for none."""
        states = table.states
        if states is None or states.position == num_computed:
            return num_computed
        found = self._pool.find(table.chain, num_computed // self._block_size)
        return 0 if found is None else found.num_blocks * self._block_size

    def swap_out(self, table: BlockTable, num_computed: int) -> bool:
        """Copy the state of a table that is swapped out, after its first `num_computed` tokens, to
        the host. Return False, and do nothing, where no state of the device has seen just these, or
        where swapped requests have all states of the host."""
        states, source = table.states, NULL_STATE
        if states is not None and states.position == num_computed:
            source = states.current
        elif num_computed % self._block_size == 0:
            num_blocks = num_computed // self._block_size
            found = self._pool.find(table.chain, num_blocks)
            if found is not None and found.num_blocks == num_blocks:
                source = found.state_id
        host_id = None if source == NULL_STATE else self._host.take()
        if host_id is None or table.swap is None:
            return False
        self._copies.append(BlockCopy(CopyKind.STATE_OUT, source, host_id))
        table.swap = table.swap._replace(state_id=host_id)
        return True

    def drop_swapped(self, state_id: int) -> None:
        """Free the host state of a swapped request, which is back or gone."""
        self._host.release(state_id)

    def plan(self, table: BlockTable, start: int, end: int) -> StateUse:
        """Return the states that the request's tokens `start .. end` read and write. There is
        always one for their end; a snapshot is left out where all states are held."""
        states = table.states
        assert states is not None and states.position == start, "chunks follow each other"
        read, writes = states.current, list[StateWrite]()
        for place in self._places(states, start, end):
            num_saved = (place.end - states.num_saved) // self._block_size
            fresh = self._pool.take_for(place.kind, num_saved)
            if fresh is None:
                states.pending.append(PendingState(place.end, NULL_STATE, place.kind))
                continue
            if place.kind != SnapshotKind.OUTPUT:  # the next takes the place of an output's
                states.num_saved = place.end
            self._pass(states, end)
            states.pending.append(PendingState(place.end, states.live, place.kind))
            writes.append(StateWrite(place.end, states.live))
            states.current, states.live = states.live, fresh
        if not writes or writes[-1].end < end:
            self._pass(states, end)
            states.current = states.live
            writes.append(StateWrite(end, states.live))
        states.position = end
        return StateUse(read, tuple(writes))

    def _places(self, states: StateTable, start: int, end: int) -> Iterable[SnapshotPlace]:
        """Return where the tokens `start .. end` leave snapshots."""
        while states.wanted and states.wanted[0].end <= end:
            place = states.wanted.pop(0)
            if place.end > start:
                yield place
        last = end // self._block_size * self._block_size
        is_output = last > max(start, states.num_known)
        if is_output and self._is_caching and self._policy.outputs:
            yield SnapshotPlace(last, SnapshotKind.OUTPUT)

    def _pass(self, states: StateTable, end: int) -> None:
        """Hold the current state until the step that reads or writes it is done."""
        if states.current not in (NULL_STATE, states.live):
            states.kept.append(KeptState(end, states.current))

    def will_keep(self, table: BlockTable, num_tokens: int) -> bool:
        """Return whether a step under way leaves a snapshot after `num_tokens` of the table."""
        states = table.states
        return states is not None and any(
            each.end == num_tokens and each.state_id != NULL_STATE for each in states.pending
        )

    def advance(self, table: BlockTable, num_computed: int, *, is_findable: bool) -> None:
        """Note that the first `num_computed` tokens are computed: snapshots of them are found from
        now on, if they may be. The table's chain has their blocks."""
        states = table.states
        if states is None:
            return
        while states.pending and states.pending[0].end <= num_computed:
            pending = states.pending.pop(0)
            if is_findable:
                self._keep(table.chain, states, pending)
        while states.kept and states.kept[0].end <= num_computed:
            self._pool.release(states.kept.pop(0).state_id)

    def _keep(self, chain: Chain, states: StateTable, pending: PendingState) -> None:
        num_blocks, is_taken = pending.end // self._block_size, pending.state_id != NULL_STATE
        if pending.kind == SnapshotKind.OUTPUT:
            states.num_output_blocks = num_blocks
        else:
            self._pool.note_place(chain, num_blocks, pending.kind, is_kept=is_taken)
        if not is_taken or not self._pool.keep(pending.state_id, chain, num_blocks, pending.kind):
            return
        if pending.kind == SnapshotKind.OUTPUT:
            if states.last_output is not None:
                self._pool.supersede(states.last_output)
            states.last_output = chain.digests[num_blocks - 1]
        elif pending.kind < SnapshotKind.LADDER:
            self._tell(chain.digests[num_blocks - 1])

    def _tell(self, digest: bytes) -> None:
        """Tell of a lasting snapshot, if it is found."""
        content = self._pool.content_under(digest)
        if content is not None and self.on_lasting is not None:
            self.on_lasting(content)

    def release(self, table: BlockTable) -> None:
        """Give all states of a table back; its snapshots may still be found."""
        states, table.states = table.states, None
        assert states is not None
        if states.num_output_blocks:
            last = table.chain.digests[states.num_output_blocks - 1]
            is_kept = last == states.last_output
            self._pool.note_place(
                table.chain, states.num_output_blocks, SnapshotKind.OUTPUT, is_kept=is_kept
            )
        if states.last_output is not None:
            self._tell(states.last_output)
        for state_id in states.held():
            self._pool.release(state_id)

    def note_lost(self, digest: bytes) -> None:
        """Note that K and V of the block of that digest are no longer found."""
        self._pool.note_lost(digest)
        self._host.note_lost(digest)

    def hold(self, state_id: int) -> None:
        """Hold a snapshot for a pin."""
        self._pool.share(state_id)

    def unhold(self, state_id: int) -> None:
        """Drop the hold of a pin."""
        self._pool.release(state_id)

    def reset(self) -> None:
        """Let no snapshot be found any more."""
        self._pool.forget()
        self._host.clear()
        self._seen.clear()

    def check(self, tables: Iterable[BlockTable], pinned: Iterable[int]) -> None:
        """Raise AccountsError unless every state is free, found, or held by the tables and pins
        that list it."""
        holders = Counter(pinned)
        for table in tables:
            assert table.states is not None
            holders.update(table.states.held())
        self._pool.check(holders)
        self._host.check()
