"""The states of all requests of a model with recurrent layers: one live state each, and snapshots
at planned borders of blocks, from which other requests go on.

    a prompt of 60 tokens, blocks of 16     it leaves a snapshot after 48 tokens
    a longer prompt that begins so          goes on from there, if the K and V before it are found

A snapshot costs no copy: a step leaves the state at the border in one place and goes on from it to
another, so that a state which others may read is never written.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain, Content
from quire.cache.states.policy import SnapshotKind, SnapshotPlace, SnapshotPolicy
from quire.cache.states.state_pool import FoundState, StatePool, StateUsage
from quire.cache.states.state_table import KeptState, PendingState, StateTable
from quire.cache.states.state_use import NULL_STATE, StateUse, StateWrite

MAX_SEEN = 64
"""A model without attention remembers so many borders for each of its states."""


class StateCache:
    """Allocates the states of all requests. `is_caching` says whether snapshots are taken.

    K and V tell where prompts part. A model without attention, which keeps none, remembers the
    digests of what it has computed instead. `on_lasting` is called with the content of each
    snapshot that slower stores are to keep: not with that of an output that goes on, nor with one
    of a ladder that nobody has gone on from.
    """

    def __init__(
        self,
        num_states: int,
        policy: SnapshotPolicy,
        is_reachable: Callable[[Content], bool],
        *,
        block_size: int,
        is_caching: bool,
    ) -> None:
        self._pool = StatePool(num_states, policy.gain_weight, is_reachable)
        self._policy = policy
        self._block_size = block_size
        self._is_caching = is_caching
        self.on_lasting: Callable[[Content], None] | None = None
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._max_seen = MAX_SEEN * num_states

    @property
    def usage(self) -> StateUsage:
        """The states by what they are."""
        return self._pool.usage

    def find(self, chain: Chain, max_blocks: int) -> FoundState | None:
        """Return the snapshot after the most blocks of `chain`, `max_blocks` at most."""
        return self._pool.find(chain, max_blocks)

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
        if found is not None:
            self._pool.share(found.state_id)
        live = self._pool.take()
        if live is None:
            if found is not None:
                self._pool.release(found.state_id)
            return False
        states = StateTable(live, num_known=num_tokens)
        if found is not None:
            self._pool.note_hit(found.state_id)
            states.current = found.state_id
            states.position = states.num_saved = found.num_blocks * self._block_size
            self._tell(table.chain.digests[found.num_blocks - 1])
        if self._is_caching:
            num_kv_blocks = num_kv_found // self._block_size
            parts = self._pool.note_found(table.chain.digests, num_kv_blocks)
            states.wanted = self._policy.wanted(
                num_tokens,
                states.position,
                num_kv_found if parts else 0,
                block_size=self._block_size,
            )
        table.states = states
        return True

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

    def hold(self, state_id: int) -> None:
        """Hold a snapshot for a pin."""
        self._pool.share(state_id)

    def unhold(self, state_id: int) -> None:
        """Drop the hold of a pin."""
        self._pool.release(state_id)

    def reset(self) -> None:
        """Let no snapshot be found any more."""
        self._pool.forget()
        self._seen.clear()

    def check(self, tables: Iterable[BlockTable], pinned: Iterable[int]) -> None:
        """Raise AccountsError unless every state is free, found, or held by the tables and pins
        that list it."""
        holders = Counter(pinned)
        for table in tables:
            assert table.states is not None
            holders.update(table.states.held())
        self._pool.check(holders)
