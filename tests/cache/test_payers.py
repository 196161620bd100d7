"""Of each held block one of its holders is charged for it, the first as long as they hold it."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.cache.block_pool import BlockPool
from quire.cache.charges.payers import ChargeChanges
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms

PAYERS = st.sampled_from(["ann", "bob", "eve", ""])


class PayersMachine(RuleBasedStateMachine):
    """Holds by block who holds it, in the order in which they came: the first is charged."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.holders: dict[int, list[str]] = {}
        self.charged: Counter[str] = Counter()

    @rule(num_blocks=st.integers(0, 4), payer=PAYERS)
    def take(self, num_blocks: int, payer: str) -> None:
        for block_id in self.pool.take(num_blocks, payer) or ():
            self.holders[block_id] = [payer]

    @rule(data=st.data(), payer=PAYERS)
    def share(self, data: st.DataObject, payer: str) -> None:
        if self.holders:
            block_id = data.draw(st.sampled_from(sorted(self.holders)))
            self.pool.share([block_id], payer)
            self.holders[block_id].append(payer)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.holders:
            return
        block_id = data.draw(st.sampled_from(sorted(self.holders)))
        holders = self.holders[block_id]
        payer = data.draw(st.sampled_from(holders))
        self.pool.release([block_id], payer)
        holders.pop(max(at for at, each in enumerate(holders) if each == payer))
        if not holders:
            del self.holders[block_id]

    @invariant()
    def the_first_holder_of_each_block_is_charged(self) -> None:
        self.charged.update(self.pool.payers.changes)
        self.pool.payers.changes.clear()
        assert +self.charged == Counter(holders[0] for holders in self.holders.values())
        self.pool.check(Counter({each: len(names) for each, names in self.holders.items()}))


TestPayers = PayersMachine.TestCase


def take_charges(cache: KVCache) -> ChargeChanges:
    """The changes since the last call."""
    device, host = cache.charges
    taken = ChargeChanges(dict(device), dict(host))
    device.clear()
    host.clear()
    return taken


def test_what_is_public_is_charged_to_whoever_was_first() -> None:
    cache = KVCache(CacheConfig(20, block_size=2))
    prompt = list(range(9))
    ann, bob = (cache.open_table(SharingTerms(name.encode(), 4), name) for name in ("ann", "bob"))
    cache.admit(ann, prompt)
    cache.advance(ann, prompt, 8)
    cache.admit(bob, prompt)
    assert take_charges(cache).device == {"ann": 5, "bob": 3}
    cache.release(ann)
    assert take_charges(cache).device == {"ann": -5, "bob": 2}
    cache.release(bob)
    assert take_charges(cache).device == {"bob": -5}


def test_pinned_blocks_are_charged_while_nobody_runs() -> None:
    cache = KVCache(CacheConfig(20, block_size=2))
    prompt = list(range(8))
    table = cache.open_table(payer="ann")
    cache.admit(table, prompt)
    cache.advance(table, prompt, 8)
    assert cache.pins.pin("p", table, prompt, max_blocks=8) == 4
    cache.release(table)
    assert take_charges(cache).device == {"ann": 4}
    cache.reset()
    assert take_charges(cache).device == {"ann": -4}


def test_what_is_promised_on_the_host_is_charged_until_it_is_back() -> None:
    cache = KVCache(CacheConfig(9, block_size=2, num_host_blocks=8))
    prompt = list(range(8))
    table = cache.open_table(payer="ann")
    cache.admit(table, prompt)
    cache.advance(table, prompt, 7)
    assert take_charges(cache) == ({"ann": 4}, {})
    assert cache.swap_out(table, 7)
    assert cache.host_usage.promised == 4
    assert take_charges(cache) == ({"ann": -4}, {"ann": 4})
    cache.admit(table, prompt)
    assert take_charges(cache) == ({"ann": 4}, {"ann": -4})
