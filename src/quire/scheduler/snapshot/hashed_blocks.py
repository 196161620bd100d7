"""The blocks of a live request that were hashed so far."""

from collections.abc import Sequence

from quire.scheduler.scheduler import Scheduler


def hashed_blocks(scheduler: Scheduler, request_id: str) -> Sequence[bytes]:
    """Return the digests of a request's full blocks, as far as they were asked for; none of a
    request that is not here."""
    request = scheduler._requests.get(request_id)
    return () if request is None else tuple(request.table.chain.digests)
