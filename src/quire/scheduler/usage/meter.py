"""The meter of tenants' device blocks, host blocks and queue places, each multiplied by time.

Only changes cost time. If the number changes by n at a time t, n x t is subtracted from an offset;
at any time, the use until then is number x time + offset. Times are whole nanoseconds, so parts add
up to the whole.

    blocks  3 |     ┌───────┐
            2 | ┌───┘       └─────┐       offset: - 2 x 0 - 1 x 10 + 1 x 30 + 2 x 45
              └─┴───┴───────┴─────┴──             = 2 x 10 + 3 x 20 + 2 x 15
                0   10      30    45 ns
"""

from dataclasses import dataclass

from quire.cache.kv_cache import KVCache
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.usage.ledger import UsageLedger, UsageUpdate

NS_PER_S = 10**9
TELL_ALL_NS = NS_PER_S
"""The interval in which continuing use is reported; use is also reported at its end."""


@dataclass(slots=True)
class TenantOccupancy:
    """The current use of a tenant, and by kind the offset of its use since the last report."""

    num_blocks: int = 0
    num_host_blocks: int = 0
    num_waiting: int = 0
    block_offset_ns: int = 0
    host_block_offset_ns: int = 0
    queue_offset_ns: int = 0

    @property
    def is_nothing(self) -> bool:
        return not (self.num_blocks or self.num_host_blocks or self.num_waiting)


class UsageMeter:
    """Charges tenants in the `ledger` for the blocks of the cache and for waiting.

    Call `advance` before the events of a time, to date the earlier ones. Times are seconds of one
    clock.
    """

    def __init__(self, ledger: UsageLedger, cache: KVCache, waiting: WaitingQueue) -> None:
        self._ledger = ledger
        self._device, self._host = cache.charges
        self._waiting = waiting.changes
        self._occupied: dict[str, TenantOccupancy] = {}
        self._now = 0.0
        self._now_ns = 0
        self._told_all_ns = 0

    @property
    def is_running(self) -> bool:
        """Whether any tenant occupies anything, as far as is known since the last call."""
        return bool(self._occupied)

    def advance(self, now: float) -> None:
        """Date all changes since the last call to its time, and set the time to `now`."""
        if now != self._now:
            if self._device or self._waiting or self._host:
                self._date_changes()
            self._now = now
            self._now_ns = max(self._now_ns, round(now * NS_PER_S))

    def take(self, now: float) -> UsageUpdate:
        """Return the usage since the last call. Continuing use is reported once a second."""
        self.advance(now)
        if self._device or self._waiting or self._host:
            self._date_changes()
        if self._now_ns - self._told_all_ns >= TELL_ALL_NS:
            self._told_all_ns = self._now_ns
            for tenant, occupied in self._occupied.items():
                self._charge(tenant, occupied)
        return self._ledger.take()

    def _date_changes(self) -> None:
        """Apply the changes at the current time."""
        device, host, waiting, now_ns = self._device, self._host, self._waiting, self._now_ns
        for tenant, change in device.items():
            occupied = self._of(tenant)
            occupied.num_blocks += change
            occupied.block_offset_ns -= change * now_ns
        for tenant, change in host.items():
            occupied = self._of(tenant)
            occupied.num_host_blocks += change
            occupied.host_block_offset_ns -= change * now_ns
        for tenant, change in waiting.items():
            occupied = self._of(tenant)
            occupied.num_waiting += change
            occupied.queue_offset_ns -= change * now_ns
        for changes in (device, host, waiting):
            for tenant, change in changes.items():
                if change <= 0:
                    self._end_if_nothing(tenant)
            changes.clear()

    def _of(self, tenant: str) -> TenantOccupancy:
        occupied = self._occupied.get(tenant)
        if occupied is None:
            occupied = self._occupied[tenant] = TenantOccupancy()
        return occupied

    def _end_if_nothing(self, tenant: str) -> None:
        """Charge a tenant that occupies nothing any more."""
        occupied = self._occupied.get(tenant)
        if occupied is not None and occupied.is_nothing:
            self._charge(tenant, occupied)
            del self._occupied[tenant]

    def _charge(self, tenant: str, occupied: TenantOccupancy) -> None:
        """Charge a tenant for its use until now."""
        now_ns, (total, own) = self._now_ns, self._ledger.accounts(tenant)
        if occupied.num_blocks or occupied.block_offset_ns:
            product = occupied.num_blocks * now_ns
            block_ns = product + occupied.block_offset_ns
            total.block_ns += block_ns
            own.block_ns += block_ns
            occupied.block_offset_ns = -product
        if occupied.num_host_blocks or occupied.host_block_offset_ns:
            product = occupied.num_host_blocks * now_ns
            host_block_ns = product + occupied.host_block_offset_ns
            total.host_block_ns += host_block_ns
            own.host_block_ns += host_block_ns
            occupied.host_block_offset_ns = -product
        if occupied.num_waiting or occupied.queue_offset_ns:
            product = occupied.num_waiting * now_ns
            queue_ns = product + occupied.queue_offset_ns
            total.queue_ns += queue_ns
            own.queue_ns += queue_ns
            occupied.queue_offset_ns = -product
