"""A snapshot has all of a scheduler and its cache that their decisions depend on, with numbers in
place of tokens and tenants. Restored, the scheduler decides as the one it was taken of.

This module alone reads and writes the parts of a scheduler from outside; `tests/scheduler/snapshot`
holds that it knows every field of each.
"""

from heapq import heappush
from typing import NamedTuple, TypeAlias

from quire.cache.snapshot.cache_snapshot import (
    CacheSnapshot,
    forget_the_gone,
    restore_cache,
    restore_table,
    snapshot_cache,
    snapshot_table,
)
from quire.cache.snapshot.digest_numbers import DigestNumbers, NumberedDigests
from quire.scheduler.policy import PolicyName
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.snapshot.arrival import TenantNumbers, tenant_of
from quire.scheduler.snapshot.estimates_snapshot import (
    EstimatesSnapshot,
    restore_estimates,
    snapshot_estimates,
)
from quire.scheduler.snapshot.outputs_snapshot import (
    OutputsSnapshot,
    restore_outputs,
    snapshot_outputs,
)
from quire.scheduler.snapshot.request_snapshot import (
    RequestSnapshot,
    restored_request,
    snapshot_request,
)
from quire.scheduler.snapshot.sessions_snapshot import (
    SessionsSnapshot,
    digests_of_sessions,
    restore_sessions,
    snapshot_sessions,
)
from quire.scheduler.snapshot.waits_snapshot import WaitsSnapshot, restore_waits, snapshot_waits

Deadline: TypeAlias = tuple[float, int, str]


class QueueSnapshot(NamedTuple):
    """The waiting queue: by tenant the ids in their order, and what it knows of tenants, by their
    numbers."""

    ids: list[tuple[int, list[str]]]
    heap: list[tuple[float, int, int]]
    num_entered: int
    last_left: int
    late_debt: float


class SharesSnapshot(NamedTuple):
    """The counters by the numbers of tenants."""

    served: list[tuple[int, float]]
    level: float
    sweep_at: int


class SchedulerSnapshot(NamedTuple):
    """A scheduler between two steps; the fields are those of `Scheduler`."""

    cache: CacheSnapshot
    requests: list[RequestSnapshot]
    queue: QueueSnapshot
    shares: SharesSnapshot
    deadlines: list[Deadline]
    num_deadlines: int
    estimates: EstimatesSnapshot
    outputs: OutputsSnapshot
    waits: WaitsSnapshot
    sessions: SessionsSnapshot
    finished_requests: list[str]
    number: int
    num_built: int
    num_admitted: int
    recent: list[tuple[int, int]]
    calm_at: int


def can_snapshot(scheduler: Scheduler) -> bool:
    """Return whether the updates have reported all ended requests. A snapshot of another moment is
    not to be taken."""
    return not scheduler._ended


def snapshot_scheduler(
    scheduler: Scheduler, numbers: DigestNumbers, tenants: TenantNumbers
) -> SchedulerSnapshot:
    """Return a snapshot. Tenants are numbered afresh for it, and so are digests where many are
    gone."""
    cache, requests = scheduler._cache, scheduler._requests.values()
    sessions = scheduler._sessions
    remembered = digests_of_sessions(sessions, scheduler._requests)
    tables = [request.table for request in requests]
    forget_the_gone(cache, tables, numbers, remembered)
    tenants.restart()
    deadlines = sorted(
        (deadline_s, number, request.id)
        for deadline_s, number, request in scheduler._deadlines._heap
        if scheduler._requests.get(request.id) is request
    )
    return SchedulerSnapshot(
        snapshot_cache(cache, numbers),
        [
            snapshot_request(
                request,
                snapshot_table(cache, request.table, numbers),
                tenants,
                is_running=request in scheduler._running,
            )
            for request in requests
        ],
        _snapshot_queue(scheduler._waiting, tenants),
        _snapshot_shares(scheduler, tenants),
        deadlines,
        scheduler._deadlines._num_added,
        snapshot_estimates(
            scheduler._throughput,
            scheduler._cost,
            scheduler._appointments,
            scheduler.pace.times,
        ),
        snapshot_outputs(scheduler._expectations.outputs, tenants),
        snapshot_waits(scheduler._prefix_waits, numbers),
        snapshot_sessions(sessions, scheduler._requests, numbers, tenants),
        list(scheduler._finished_requests),
        scheduler._number,
        scheduler._builder._num_built,
        scheduler._num_admitted,
        list(scheduler._counters.recent._requests),
        scheduler._admission._calm_at,
    )


def restore_scheduler(
    scheduler: Scheduler, snapshot: SchedulerSnapshot, digests: NumberedDigests
) -> None:
    """Restore a new scheduler over a new cache, which uses the hash of `digests`, from the
    snapshot."""
    restore_cache(scheduler._cache, snapshot.cache, digests)
    tenants = _Tenants(is_fair=scheduler._policy.name is PolicyName.FAIR)
    _restore_shares(scheduler, snapshot.shares, tenants)
    for each in snapshot.requests:
        table = restore_table(scheduler._cache, each.table, digests)
        request = restored_request(each, table, tenants.id_of(each.tenant), scheduler._journal)
        scheduler._requests[request.id] = request
        request.generated = scheduler._counters.usage.open(request.new.tenant)
        scheduler._shares.open(request.tenant)
        if each.is_running:
            scheduler._running.add(request)
    _restore_queue(scheduler, snapshot.queue, tenants)
    requests = scheduler._requests
    for deadline_s, number, request_id in snapshot.deadlines:
        heappush(scheduler._deadlines._heap, (deadline_s, number, requests[request_id]))
    scheduler._deadlines._num_added = snapshot.num_deadlines
    restore_estimates(
        scheduler._throughput,
        scheduler._cost,
        scheduler._appointments,
        scheduler.pace.times,
        snapshot.estimates,
    )
    restore_outputs(scheduler._expectations.outputs, snapshot.outputs)
    restore_waits(scheduler._prefix_waits, snapshot.waits, requests)
    restore_sessions(scheduler._sessions, snapshot.sessions, requests)
    scheduler._finished_requests = list(snapshot.finished_requests)
    scheduler._number = snapshot.number
    scheduler._builder._num_built = snapshot.num_built
    scheduler._num_admitted = snapshot.num_admitted
    for num_queries, num_hits in snapshot.recent:
        scheduler._counters.recent.observe(num_queries, num_hits)
    scheduler._admission._calm_at = snapshot.calm_at


class _Tenants(NamedTuple):
    """The ids of queues in a replay: numbers as text, where the policy knows tenants."""

    is_fair: bool

    def id_of(self, number: int) -> str:
        return tenant_of(number) if self.is_fair else ""


def _snapshot_queue(queue: WaitingQueue, tenants: TenantNumbers) -> QueueSnapshot:
    return QueueSnapshot(
        [
            (tenants.number(tenant), [request.id for request in waiting.at(0)])
            for tenant, waiting in queue._queues.items()
        ],
        [(served, number, tenants.number(tenant)) for served, number, tenant in queue._heap],
        queue._num_entered,
        tenants.number(queue._last_left),
        queue._late_debt,
    )


def _restore_queue(scheduler: Scheduler, snapshot: QueueSnapshot, tenants: _Tenants) -> None:
    queue = scheduler._waiting
    queue._heap = [
        (served, number, tenants.id_of(tenant)) for served, number, tenant in snapshot.heap
    ]
    queue._in_heap = {tenant for _, _, tenant in queue._heap}
    for _, ids in snapshot.ids:
        for request_id in ids:
            queue.restore(scheduler._requests[request_id])
    queue._num_entered = snapshot.num_entered
    queue._last_left = tenants.id_of(snapshot.last_left)
    queue._late_debt = snapshot.late_debt


def _snapshot_shares(scheduler: Scheduler, tenants: TenantNumbers) -> SharesSnapshot:
    shares = scheduler._shares
    served = [(tenants.number(tenant), served) for tenant, served in shares._served.items()]
    return SharesSnapshot(served, shares._level, shares._sweep_at)


def _restore_shares(scheduler: Scheduler, snapshot: SharesSnapshot, tenants: _Tenants) -> None:
    shares = scheduler._shares
    shares._served = {tenants.id_of(tenant): served for tenant, served in snapshot.served}
    shares._level = snapshot.level
    shares._sweep_at = snapshot.sweep_at
