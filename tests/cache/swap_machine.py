"""Swap, offload and fork by the cache's interface, as a state machine over made-up memory: whatever
is called between two steps, each request finds what it has computed, and the accounts balance.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.cache.admission import BlocksMissing
from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_pool import NULL_BLOCK
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL
from tests.cache.cache_machine import GROUPS, OFTEN, held_by, take_all

COMMON = [0, 1, 1, 0, 1, 0, 0, 1] * 2
TOKENS = st.builds(
    lambda shared, own: COMMON[:shared] + own,
    st.integers(0, len(COMMON)),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
)
MAX_CHUNK_TOKENS = 6
CONFIGS = st.builds(
    CacheConfig,
    num_blocks=st.integers(3, 24),
    block_size=st.integers(1, 4),
    enable_prefix_caching=OFTEN,
    groups=st.just((FULL,)) | GROUPS,
    max_chunk_tokens=st.just(MAX_CHUNK_TOKENS),
    num_host_blocks=st.integers(0, 12),
)
Slot = tuple[int, int]
Content = tuple[int, SharingTerms, tuple[int, ...]]
"""Of one token place: the group, and all tokens up to this one."""


@dataclass(eq=False)
class Live:
    """`end`: where its chunk of the coming step ends, if it has one. `age`: how many resets there
    had been when the oldest was computed of all that it goes on from.
    """

    table: BlockTable
    tokens: list[int]
    num_computed: int = 0
    end: int | None = None
    age: int = 0
    is_new: bool = False
    swapped_after: int = 0


class SwapMachine(RuleBasedStateMachine):
    """Calls until `step`, which does the moves in their order and then computes all chunks. Beside
    its content the memory knows of each token after how many resets it was computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Live] = []
        self.swapped: list[Live] = []
        self.device: dict[Slot, tuple[Content, int]] = {}
        self.host: dict[Slot, tuple[Content, int]] = {}
        self.num_resets = 0
        self.pinned: dict[str, tuple[SharingTerms, list[int]]] = {}

    @initialize(config=CONFIGS, offloads=st.booleans())
    def build(self, config: CacheConfig, offloads: bool) -> None:
        self.block_size, self.groups = config.block_size, config.groups
        self.cache = KVCache(config)
        self.cache.offloads = offloads

    @rule(offloads=st.booleans())
    def offload_or_not(self, offloads: bool) -> None:
        self.cache.offloads = offloads

    @rule(
        tokens=TOKENS,
        salt=st.sampled_from([b"", b"a"]),
        use_host=st.booleans(),
        times=st.integers(1, 2),
        steps=OFTEN,
    )
    def admit(
        self, tokens: list[int], salt: bytes, use_host: bool, times: int, steps: bool
    ) -> None:
        """Admit a prompt once or twice; both requests compute what is not cached yet."""
        for _ in range(times):
            live = Live(self.cache.open_table(SharingTerms(salt)), list(tokens), is_new=True)
            found = self.cache.admit(live.table, tokens, use_host=use_host)
            if not isinstance(found, BlocksMissing):
                self.begin(live, found)
        if steps:
            self.step()

    @precondition(lambda self: len(self.live) > 1)
    @rule(pick=st.integers(0, 100), most=st.integers(1, 4))
    def release_and_evict(self, pick: int, most: int) -> None:
        """Some end; nothing is left of them on the device but what others hold."""
        for _ in range(min(most, len(self.live) - 1)):
            self.release(pick)
        take_all(self.cache, len(self.groups), self.block_size)

    @precondition(lambda self: self.live)
    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.pinned.clear()
        self.num_resets += 1

    @precondition(lambda self: self.swapped)
    @rule(
        pick=st.integers(0, 100), use_cache=st.booleans(), keep_free=st.integers(0, 1), steps=OFTEN
    )
    def resume(self, pick: int, use_cache: bool, keep_free: int, steps: bool) -> None:
        live = self.swapped[pick % len(self.swapped)]
        swap = live.table.swap
        assert swap is not None
        found = self.cache.admit(live.table, live.tokens, use_cache=use_cache, keep_free=keep_free)
        if isinstance(found, BlocksMissing):
            assert live.table.swap is swap
            return
        if live.swapped_after == self.num_resets or not swap.retained:
            assert found >= swap.num_computed, "what was promised is there"
        self.swapped.remove(live)
        self.begin(live, found)
        if steps:
            self.step()

    def begin(self, live: Live, found: int) -> None:
        assert found < len(live.tokens)
        live.num_computed = found
        live.end = min(len(live.tokens), found + MAX_CHUNK_TOKENS)
        live.age = self.num_resets
        self.live.append(live)

    @precondition(lambda self: self.without_chunk)
    @rule(pick=st.integers(0, 100), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, pick: int, more: list[int]) -> None:
        live = self.without_chunk[pick % len(self.without_chunk)]
        live.tokens.extend(more)
        end = min(len(live.tokens), live.num_computed + MAX_CHUNK_TOKENS)
        if self.cache.grow(live.table, live.num_computed, end) is not None:
            live.end = end

    @precondition(lambda self: self.without_chunk)
    @rule(pick=st.integers(0, 100), extra=st.integers(0, 1), resets=st.booleans())
    def swap_out(self, pick: int, extra: int, resets: bool) -> None:
        if resets:
            self.reset()
        live = self.without_chunk[pick % len(self.without_chunk)]
        if live.num_computed == len(live.tokens):
            live.tokens.append(extra)
        recompute_cost = self.cache.recompute_cost(live.table, live.num_computed)
        assert recompute_cost.num_blocks <= len(held_by(live.table))
        assert recompute_cost.num_tokens <= live.num_computed
        if self.cache.swap_out(live.table, live.num_computed):
            live.swapped_after = self.num_resets
            self.live.remove(live)
            self.swapped.append(live)

    @precondition(lambda self: self.without_chunk)
    @rule(pick=st.integers(0, 100), share=st.floats(0, 1), extra=st.integers(0, 1), steps=OFTEN)
    def fork(self, pick: int, share: float, extra: int, steps: bool) -> None:
        source = self.without_chunk[pick % len(self.without_chunk)]
        num_tokens = int(share * source.num_computed)
        tokens = [*source.tokens[:num_tokens], extra]
        child = Live(self.cache.open_table(source.table.sharing), tokens)
        forked = self.cache.fork(source.table, child.table, num_tokens)
        if forked is True:
            self.begin(child, num_tokens)
            if steps:
                self.step()
        elif forked is False:
            assert self.groups != (FULL,), "what sees all has given nothing back"

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        self.cache.release(self.live.pop(pick % len(self.live)).table)

    @precondition(lambda self: self.swapped)
    @rule(pick=st.integers(0, 100))
    def forget(self, pick: int) -> None:
        live = self.swapped.pop(pick % len(self.swapped))
        self.cache.forget(live.table)
        assert live.table.swap is None

    @precondition(lambda self: self.without_chunk)
    @rule(pick=st.integers(0, 100), share=st.floats(0, 1), name=st.sampled_from("ab"))
    def pin(self, pick: int, share: float, name: str) -> None:
        live = self.without_chunk[pick % len(self.without_chunk)]
        num_full = int(share * live.num_computed) // self.block_size
        tokens, sharing = live.tokens[: num_full * self.block_size], live.table.sharing
        table = self.cache.open_table(sharing)
        pinned = self.cache.pins.pin(name, table, tokens, max_blocks=self.cache.usage.active)
        if isinstance(pinned, int):
            self.pinned[name] = sharing, tokens

    @rule(name=st.sampled_from("abc"))
    def unpin(self, name: str) -> None:
        self.cache.pins.unpin(name)
        self.pinned.pop(name, None)

    @invariant()
    def what_is_pinned_is_on_the_device(self) -> None:
        for sharing, tokens in self.pinned.values():
            table = self.cache.open_table(sharing)
            found = self.cache.num_cached(table, [*tokens, 0], use_host=False)
            assert found == len(tokens)

    @rule()
    def step(self) -> None:
        for copy in self.cache.take_block_copies():
            self.copy(copy)
        for live in self.live:
            if live.end is not None:
                self.compute(live, live.end)
        for live in self.live:
            self.cache.advance(live.table, live.tokens, live.num_computed)

    def copy(self, copy: BlockCopy) -> None:
        source = self.host if copy.kind is CopyKind.IN else self.device
        target = self.host if copy.kind is CopyKind.OUT else self.device
        for offset in range(self.block_size):
            content = source.get((copy.source, offset))
            target.pop((copy.target, offset), None)
            if content is not None:
                target[copy.target, offset] = content

    def compute(self, live: Live, end: int) -> None:
        """What a chunk's tokens can see is there when it runs, and they are afterwards."""
        ages = self.ages_seen(live)
        if live.is_new:
            assert min(ages, default=live.age) >= live.age, "a reset is not undone"
        live.age = min([live.age, *ages])
        for group, ids in enumerate(live.table.block_ids):
            for position in range(live.num_computed, end):
                block_id = ids[position // self.block_size]
                assert block_id != NULL_BLOCK
                slot = block_id, position % self.block_size
                self.device[slot] = self.content(live, group, position), live.age
        live.num_computed, live.end, live.is_new = end, None, False

    def ages_seen(self, live: Live) -> list[int]:
        """Of all that its next token can see; the contents are checked."""
        ages = []
        for group, pattern in enumerate(self.groups):
            ids = live.table.block_ids[group]
            for position in range(pattern.first_needed(live.num_computed), live.num_computed):
                content, age = self.device[
                    ids[position // self.block_size], position % self.block_size
                ]
                assert content == self.content(live, group, position)
                ages.append(age)
        return ages

    def content(self, live: Live, group: int, position: int) -> Content:
        return group, live.table.sharing, tuple(live.tokens[: position + 1])

    @property
    def without_chunk(self) -> list[Live]:
        return [live for live in self.live if live.end is None and live.num_computed > 0]

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert sum(self.cache.usage) == self.cache.num_usable_blocks
        promised = {key for live in self.swapped for key in self.swap_keys(live)}
        private = sum(len(live.table.swap.private) for live in self.swapped if live.table.swap)
        assert private <= self.cache.host_usage.swapped <= private + len(promised)

    def swap_keys(self, live: Live) -> tuple[bytes, ...]:
        return () if live.table.swap is None else live.table.swap.keys
