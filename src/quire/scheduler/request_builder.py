"""Builds the live part of a request: of one that is new, or of one that an engine had accepted
before it ended.

What an engine hands out in one message belongs together: tokens, scores, events and counts. A
request is therefore restored from its tokens and its events alone, and what its timeline names was
counted by the engine that has ended.
"""

from quire.cache.block_table import BlockTable
from quire.cache.kv_cache import KVCache
from quire.scheduler.policy import Policy
from quire.scheduler.reasons import PREEMPTIONS, Reason
from quire.scheduler.request import Event, NewRequest, Request, ResumedOutput
from quire.scheduler.sessions.sessions import LEAD_S, Sessions

BEFORE_ALL_NEW = 1 << 62
"""The offset by which numbers of resumed requests are below those of new ones."""
_FIRST_ADMISSIONS = (Reason.ADMITTED, Reason.FORKED)


class RequestBuilder:
    """Gives each request its table, its tenant and its priority key; all share one `journal`."""

    def __init__(
        self,
        cache: KVCache,
        policy: Policy,
        sessions: Sessions,
        journal: list[tuple[str, Event]],
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._sessions = sessions
        self._journal = journal
        self._num_built = 0

    def new(self, new: NewRequest, now: float, *, is_ready: bool) -> Request:
        """Return a request that arrives `now`."""
        self._num_built += 1
        table = self._open_table(new)
        session = self._sessions.find(new, table, now)
        lead_s = self._sessions.lead_s(session, now)
        request = self._request(new, table, (now, lead_s), self._num_built, is_ready=is_ready)
        request.session = session
        return request

    def resumed(
        self, new: NewRequest, resumed: ResumedOutput, now: float, *, is_ready: bool
    ) -> Request:
        """Return a resumed request, whose delivered output is neither delivered nor counted again.
        It keeps its arrival time, or has `now` without a recorded one."""
        self._num_built += 1
        number = self._num_built - BEFORE_ALL_NEW
        arrived_s = resumed.timeline[0].time_s if resumed.timeline else now
        times = (arrived_s, LEAD_S)
        request = self._request(new, self._open_table(new), times, number, is_ready=is_ready)
        request.token_ids += resumed.output_token_ids
        request.num_scored = resumed.num_scored
        request.timeline += resumed.timeline
        for event in resumed.timeline:
            _restore(request, event)
        if request.num_outputs:  # all before the last was computed, and the prompt paid for
            request.num_discarded = len(request.token_ids) - 1
            request.num_charged = request.num_prompt_tokens
        return request

    def _open_table(self, new: NewRequest) -> BlockTable:
        return self._cache.open_table(new.sharing, new.tenant, new.id)

    def _request(
        self,
        new: NewRequest,
        table: BlockTable,
        times: tuple[float, float],
        number: int,
        *,
        is_ready: bool,
    ) -> Request:
        """Return a request that arrived at the first of these times, and counts as having arrived
        so many seconds earlier."""
        arrived_s, lead_s = times
        return Request(
            new,
            table,
            list(new.prompt_token_ids),
            self._policy.tenant(new),
            self._policy.priority_key(new, arrived_s=arrived_s, lead_s=lead_s, number=number),
            is_ready=is_ready,
            arrived_s=arrived_s,
            lead_s=lead_s,
            journal=self._journal,
        )


def _restore(request: Request, event: Event) -> None:
    if event.reason in _FIRST_ADMISSIONS and request.admitted_s is None:
        request.admitted_s, request.num_cached = event.time_s, event.number
    elif event.reason is Reason.FIRST_TOKEN:
        request.first_token_s = event.time_s
    elif event.reason in PREEMPTIONS:
        request.num_earlier_preemptions += 1
        request.num_urgent += event.reason is Reason.PREEMPTED_FOR_URGENT
