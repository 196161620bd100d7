"""Decides whether a request is taken into the waiting queue."""

from collections.abc import Mapping

from quire.cache.kv_cache import KVCache
from quire.scheduler.appointments import Appointments
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.refusals import fork_differs, never_served, queue_full
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.running import RunningSet
from quire.scheduler.step import Refusal


class Acceptance:
    """Refuses requests that can never be served, and new requests when the queue is full."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        waiting: WaitingQueue,
        running: RunningSet,
        appointments: Appointments,
    ) -> None:
        self._config = config
        self._policy = config.policy
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._appointments = appointments

    def refusal(
        self, new: NewRequest, requests: Mapping[str, Request], now: float
    ) -> Refusal | None:
        """Return the refusal of a request, or None; `requests` are the accepted ones."""
        source = requests.get(new.fork_of) if new.fork_of else None
        return (
            self.resumed_refusal(new, requests) or fork_differs(new, source) or self._full(new, now)
        )

    def resumed_refusal(self, new: NewRequest, requests: Mapping[str, Request]) -> Refusal | None:
        """Return why a request that was taken before is not taken again, or None: its id is in use,
        or no amount of waiting would let it run."""
        if new.id in requests:
            return Refusal(new.id, Reason.DUPLICATE_ID, f"a request {new.id!r} is still running")
        return never_served(new, self._config, self._cache)

    def _full(self, new: NewRequest, now: float) -> Refusal | None:
        tenant, num_running = self._policy.tenant(new), len(self._running)
        refusal = queue_full(new, tenant, self._config, self._waiting, num_running=num_running)
        if refusal is not None:
            return refusal._replace(wait_s=self._appointments.give(new, now, self._running))
        self._appointments.note_entry(now, len(self._waiting), self._config.max_num_queued_reqs)
        return None
