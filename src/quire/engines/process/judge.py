"""Says which requests may run while some are suspected, and ends the one that is found to crash
engines.
"""

import logging
import time
from collections.abc import Sequence

from quire.engine.messages import Abort
from quire.engines.process.live_request import SubmittedRequest
from quire.engines.process.quarantine import Quarantine
from quire.engines.process.request_table import RequestTable
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.trials import Trials
from quire.scheduler.reasons import Reason

logger = logging.getLogger(__name__)


class Judge:
    """Judges the requests of `table` by the `trials`; the `quarantine` keeps those that are
    convicted."""

    def __init__(
        self,
        trials: Trials,
        quarantine: Quarantine,
        table: RequestTable,
        subscriber: EngineSubscriber,
    ) -> None:
        self._trials = trials
        self._quarantine = quarantine
        self._table = table
        self._subscriber = subscriber

    def on_crash(self, ran: Sequence[str]) -> None:
        """Count a crash for those that ran in it; end the request that is found to bring it
        about."""
        live = self._table.live
        convicted = self._trials.on_crash(ran, live)
        if convicted is not None:
            logger.error("request %s crashes the engine: it is not run again", convicted)
            self._quarantine.add(live[convicted].request, time.monotonic())
            self._subscriber.on_quarantined()
            self._table.end(live[convicted], Reason.QUARANTINED)
        elif self._trials.group is not None:
            logger.warning("%d requests ran in two crashes", self._trials.num_suspects)

    def pass_group(self) -> list[Abort]:
        """Go on to the next suspects once those that run are cleared, or with all; return the
        messages that take those from the engine that are to go on later."""
        group, live = self._trials.group, self._table.live
        if not group or any(id in live and not live[id].has_passed for id in group):
            return []
        self._trials.pass_group()
        num_left = self._trials.num_suspects
        logger.warning("%d requests are cleared, %d suspects are left", len(group), num_left)
        if self._trials.group is None:
            return []
        cleared = [live[id] for id in group if id in live and live[id].is_handed_over]
        return [self._table.withdraw(each) for each in cleared]

    def next_waiting(self) -> SubmittedRequest | None:
        """Return the first request that waits and may run now, if there is one."""
        waiting, group = self._table.waiting, self._trials.group
        if group is None:
            return next(iter(waiting.values()), None)
        return next((waiting[request_id] for request_id in group if request_id in waiting), None)
