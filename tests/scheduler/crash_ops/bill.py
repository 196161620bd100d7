"""What tenants are told that they have used, beside what was seen of it: the gauges between one
time and the next, and the counts of all engines.
"""

from collections import Counter

from quire.scheduler.step import Stats
from quire.scheduler.usage.ledger import TenantUsage, UsageUpdate, added
from tests.scheduler.crash_ops.clients import Clients

NS_PER_S = 10**9


class Bill:
    """Adds up what is told by tenant. What was seen since the last message is lost with the engine
    that would have told of it."""

    def __init__(self) -> None:
        self.told: dict[str, TenantUsage] = {}
        self._seen: Counter[str] = Counter()
        self._unsent: Counter[str] = Counter()

    def pass_time(self, seconds: int, stats: Stats, num_promised: int) -> None:
        """Note how long it was as the accounts say."""
        num_ns = seconds * NS_PER_S
        self._unsent["block_ns"] += num_ns * (stats.num_blocks_active + stats.num_blocks_pinned)
        self._unsent["host_block_ns"] += num_ns * num_promised
        self._unsent["queue_ns"] += num_ns * stats.num_waiting

    def lose_engine(self) -> None:
        self._unsent.clear()

    def take(self, told: UsageUpdate) -> None:
        self._seen += self._unsent
        self._unsent.clear()
        generated = (
            TenantUsage(tenant, num_generation_tokens=num_tokens)
            for tenant, num_tokens in told.num_generated.items()
        )
        for each in (*generated, *told.whole):
            before = self.told.get(each.tenant, TenantUsage(each.tenant))
            self.told[each.tenant] = added(before, each)

    def check(self, clients: Clients) -> None:
        """What was told adds up to what was seen and counted, and is told to whom it is of."""
        for name in ("block_ns", "host_block_ns", "queue_ns"):
            assert self._sum_of(name) == self._seen[name], name
        for name in TenantUsage._fields[1:-3]:
            if name != "num_wasted_tokens":
                counted = sum(getattr(stats, name) for stats in clients.stats)
                assert self._sum_of(name) == counted, name
        num_wasted = sum(stats.num_wasted_tokens for stats in clients.stats)
        assert self._sum_of("num_wasted_tokens") + self._sum_of("num_lost_tokens") == num_wasted
        num_outputs: Counter[str] = Counter()
        for each in clients.of.values():
            num_outputs[each.new.tenant] += len(each.token_ids)
        for tenant, used in self.told.items():
            assert used.num_generation_tokens == num_outputs[tenant]

    def _sum_of(self, name: str) -> int:
        return sum(getattr(used, name) for used in self.told.values())
