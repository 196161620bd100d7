"""A snapshot of one live request: counts and times."""

from typing import NamedTuple

from quire.cache.block_table import BlockTable
from quire.cache.snapshot.cache_snapshot import TableSnapshot
from quire.scheduler.reasons import LoadSource, Reason
from quire.scheduler.request import Event, Outlook, Request, SortKey
from quire.scheduler.snapshot.arrival import (
    PLAIN_TOKEN,
    ArrivalSnapshot,
    TenantNumbers,
    arrival_of,
    request_of,
)


class RequestSnapshot(NamedTuple):
    """A request as it is; the fields are those of `Request`, and `last` is the last reason of its
    timeline. `is_running` is False for a waiting request."""

    arrival: ArrivalSnapshot
    table: TableSnapshot
    is_running: bool
    num_tokens: int
    tenant: int
    priority_key: SortKey
    running_order: SortKey
    outlook: Outlook | None
    lead_s: float
    is_ready: bool
    loading_from: LoadSource | None
    num_loaded: int
    num_from_peers: int
    num_computed: int
    num_pending: int
    num_cached: int
    num_preemptions: int
    num_earlier_preemptions: int
    num_urgent: int
    num_discarded: int
    num_scored: int
    num_skips: int
    is_late: bool
    is_held: bool
    num_charged: int
    admitted_step: int
    arrived_s: float
    admitted_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    prompt_step: int | None
    last: Reason


def snapshot_request(
    request: Request, table: TableSnapshot, tenants: TenantNumbers, *, is_running: bool
) -> RequestSnapshot:
    """Return a snapshot of the request, with the number of the tenant whose queue it is in."""
    return RequestSnapshot(
        arrival_of(request.new, tenants),
        table,
        is_running,
        len(request.token_ids),
        tenants.number(request.tenant),
        request.priority_key,
        request.running_order,
        request.outlook,
        request.lead_s,
        request.is_ready,
        request.loading_from,
        request.num_loaded,
        request.num_from_peers,
        request.num_computed,
        request.num_pending,
        request.num_cached,
        request.num_preemptions,
        request.num_earlier_preemptions,
        request.num_urgent,
        request.num_discarded,
        request.num_scored,
        request.num_skips,
        request.is_late,
        request.is_held,
        request.num_charged,
        request.admitted_step,
        request.arrived_s,
        request.admitted_s,
        request.first_token_s,
        request.last_token_s,
        request.prompt_step,
        request.timeline[-1].reason,
    )


def restored_request(
    snapshot: RequestSnapshot, table: BlockTable, tenant: str, journal: list[tuple[str, Event]]
) -> Request:
    """Return the request that the snapshot says, in the queue of `tenant`."""
    return Request(
        request_of(snapshot.arrival),
        table,
        [PLAIN_TOKEN] * snapshot.num_tokens,
        tenant,
        priority_key=snapshot.priority_key,
        running_order=snapshot.running_order,
        outlook=snapshot.outlook,
        lead_s=snapshot.lead_s,
        is_ready=snapshot.is_ready,
        loading_from=snapshot.loading_from,
        num_loaded=snapshot.num_loaded,
        num_from_peers=snapshot.num_from_peers,
        num_computed=snapshot.num_computed,
        num_pending=snapshot.num_pending,
        num_cached=snapshot.num_cached,
        num_preemptions=snapshot.num_preemptions,
        num_earlier_preemptions=snapshot.num_earlier_preemptions,
        num_urgent=snapshot.num_urgent,
        num_discarded=snapshot.num_discarded,
        num_scored=snapshot.num_scored,
        num_skips=snapshot.num_skips,
        is_late=snapshot.is_late,
        is_held=snapshot.is_held,
        num_charged=snapshot.num_charged,
        admitted_step=snapshot.admitted_step,
        arrived_s=snapshot.arrived_s,
        admitted_s=snapshot.admitted_s,
        first_token_s=snapshot.first_token_s,
        last_token_s=snapshot.last_token_s,
        prompt_step=snapshot.prompt_step,
        timeline=[Event(snapshot.arrived_s, snapshot.last, 0)],
        journal=journal,
    )
