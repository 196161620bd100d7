"""All that tenants occupy is told to the nanosecond, and a second late at most."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.usage.meter import NS_PER_S
from tests.scheduler.driver import BLOCK_SIZE, CONFIG, request, result_of

NUM_BLOCKS = 20
TENANTS = ("ann", "bob", "")
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "abort", "take", *["step"] * 3]),
        st.sampled_from(TENANTS),
        st.integers(0, 1_700_000),
    ),
    max_size=50,
)


class Metered:
    """A scheduler with a clock, and what its requests are seen to occupy: no two share a block.

    `seen` and `told` are counts by tenant and kind.
    """

    def __init__(self) -> None:
        cache = KVCache(CacheConfig(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=False))
        self.scheduler = Scheduler(CONFIG, cache)
        self.now = 1000.0
        self.seen: Counter[tuple[str, str]] = Counter()
        self.told: Counter[tuple[str, str]] = Counter()
        self._tenant_of: dict[str, str] = {}
        self._num_blocks: dict[str, int] = {}
        self._num_added = 0

    def pass_time(self, microseconds: int) -> None:
        before, self.now = self.now, self.now + microseconds / 1e6
        num_ns = round(self.now * NS_PER_S) - round(before * NS_PER_S)
        for name, tenant in self._tenant_of.items():
            num_blocks = self._num_blocks.get(name)
            if num_blocks is None:
                self.seen[tenant, "queue_ns"] += num_ns
            else:
                self.seen[tenant, "block_ns"] += num_ns * num_blocks

    def add(self, tenant: str, num_prompt: int = 8, max_tokens: int = 8) -> None:
        name = f"r{self._num_added}"
        self._num_added += 1
        new = replace(request(name, num_prompt, max_tokens), tenant=tenant)
        assert self.scheduler.add(new, self.now) is None
        self._tenant_of[name] = tenant

    def abort(self) -> None:
        """End the newest request."""
        if self._tenant_of:
            name = list(self._tenant_of)[-1]
            assert self.scheduler.abort(name, self.now) is not None
            self._end(name)

    def step(self, microseconds: int) -> None:
        """Take a step that computes so long."""
        step = self.scheduler.schedule(self.now)
        for name in step.finished_requests:
            self._num_blocks.pop(name, None)
        for new in step.new_requests:
            self._num_blocks[new.request.id] = sum(map(len, new.block_ids))
        for chunk in step.chunks:
            self._num_blocks[chunk.request_id] += sum(map(len, chunk.new_block_ids))
        self.pass_time(microseconds)
        for delta in self.scheduler.update(step, result_of(step), self.now):
            tenant = self._tenant_of[delta.request_id]
            self.seen[tenant, "num_generation_tokens"] += len(delta.token_ids)
            if delta.finish is not None:
                self._end(delta.request_id)

    def take(self) -> None:
        update = self.scheduler.usage.take(self.now)
        for tenant, num_tokens in update.num_generated.items():
            self.told[tenant, "num_generation_tokens"] += num_tokens
        for each in update.whole:
            for name in ("num_generation_tokens", "block_ns", "queue_ns"):
                self.told[each.tenant, name] += getattr(each, name)

    def finish(self) -> None:
        """Go on until nothing is left."""
        while self._tenant_of:
            self.step(30_001)
        self.take()

    def _end(self, name: str) -> None:
        del self._tenant_of[name]
        self._num_blocks.pop(name, None)


@given(OPERATIONS)
def test_what_is_told_adds_up_to_what_was_occupied(operations: list[tuple[str, str, int]]) -> None:
    metered = Metered()
    for name, tenant, microseconds in operations:
        if name == "add":
            metered.add(tenant)
        elif name == "abort":
            metered.abort()
        elif name == "take":
            metered.take()
            assert metered.told <= metered.seen
        else:
            metered.step(microseconds)
        metered.pass_time(microseconds // 7)
    metered.finish()
    assert +metered.told == +metered.seen


def test_what_goes_on_is_told_once_a_second_and_tokens_at_once() -> None:
    metered = Metered()
    metered.add("ann", num_prompt=3, max_tokens=30)
    metered.add("bob", num_prompt=36, max_tokens=1)
    told_s = []
    for _ in range(25):
        metered.step(200_000)
        before = metered.told["ann", "block_ns"]
        metered.take()
        assert (
            metered.told["ann", "num_generation_tokens"]
            == (metered.seen["ann", "num_generation_tokens"])
        )
        if metered.told["ann", "block_ns"] > before:
            told_s.append(round(metered.now - 1000.0, 1))
            assert metered.told["ann", "block_ns"] == metered.seen["ann", "block_ns"]
            assert metered.told["bob", "queue_ns"] == metered.seen["bob", "queue_ns"]
    assert told_s == [0.2, 1.2, 2.2, 3.2, 4.2]
    assert metered.told["bob", "queue_ns"] > 0
    metered.finish()
    assert metered.told == metered.seen


def test_what_ends_is_told_at_once() -> None:
    metered = Metered()
    metered.add("ann", max_tokens=30)
    metered.step(10_000)
    metered.take()
    metered.pass_time(10_000)
    metered.abort()
    metered.take()
    assert metered.told == metered.seen and metered.told["ann", "block_ns"] > 0
