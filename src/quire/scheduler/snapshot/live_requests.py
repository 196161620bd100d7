"""The live requests of a scheduler, for people."""

from typing import NamedTuple

from quire.scheduler.reasons import Reason
from quire.scheduler.scheduler import Scheduler


class LiveRequestSnapshot(NamedTuple):
    """A request as it is; `last` is the last reason of its timeline, and `num_blocks` what it holds
    on the device."""

    id: str
    is_running: bool
    arrived_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed: int
    num_blocks: int
    num_preemptions: int
    last: Reason


def live_requests(scheduler: Scheduler) -> list[LiveRequestSnapshot]:
    """Return the running requests in their order, then the waiting ones in order of arrival."""
    waiting = [each for each in scheduler._requests.values() if each not in scheduler._running]
    return [
        LiveRequestSnapshot(
            each.id,
            each in scheduler._running,
            each.arrived_s,
            each.num_prompt_tokens,
            each.num_outputs,
            each.num_computed,
            sum(map(len, each.table.block_ids)) - sum(each.table.num_passed),
            each.num_preemptions,
            each.timeline[-1].reason,
        )
        for each in (*scheduler._running, *waiting)
    ]
