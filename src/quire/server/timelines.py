"""What happened to the last requests: their engine's events, kept as they come in a bounded ring.

Neither text nor tokens are kept, and nothing that would tell one tenant of another's requests.
"""

from collections import deque
from dataclasses import dataclass, field

from quire.engine.messages import Report
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event
from quire.scheduler.step import Delta, Finish
from quire.server.job import Job

CHOICES_PER_REQUEST = 16
"""Of so many choices per request, on average, is told: requests may have a thousand."""
ANOTHER = "another tenant"
"""Stands for the id of a request that is not known to be the reader's own."""


@dataclass(slots=True)
class Track:
    """One choice in the engine. `finish` is the engine's account of it, once it has ended."""

    request_id: str
    num_prompt_tokens: int
    events: list[Event] = field(default_factory=list)
    num_outputs: int = 0
    finish: Finish | None = None


@dataclass(slots=True)
class Timeline:
    """One HTTP request from `arrived_s`, over `handed_s` (to the engine), to `ended_s`, when its
    client has all of the answer; all of one clock, which the engine's events share.
    """

    id: str
    created_s: int
    model: str
    tenant: str
    request_id: str
    arrived_s: float
    handed_s: float
    tracks: list[Track]
    ended_s: float | None = None
    refused: Reason | None = None

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """What it is found by: the reply's id, and the header's."""
        return (self.tenant, self.id), (self.tenant, self.request_id)


class Timelines:
    """`most` are kept, the newest; fewer where they have many choices. `are_apart`: there are
    tenants, who must not learn of each other."""

    def __init__(self, most: int, *, are_apart: bool) -> None:
        self._most = most
        self._are_apart = are_apart
        self._ring: deque[Timeline] = deque()
        self._num_tracks = 0
        self._by_name: dict[tuple[str, str], Timeline] = {}
        self._by_request: dict[str, tuple[Timeline, Track]] = {}

    def open(self, job: Job, now: float) -> Timeline:
        timeline = _timeline(job, now)
        if self._most == 0:
            return timeline
        self._ring.append(timeline)
        self._num_tracks += len(timeline.tracks)
        while len(self._ring) > 1 and self._are_too_many():
            self._forget(self._ring.popleft())
        for name in timeline.names:
            self._by_name[name] = timeline
        for track in timeline.tracks:
            self._by_request[track.request_id] = timeline, track
        return timeline

    def _are_too_many(self) -> bool:
        most_tracks = self._most * CHOICES_PER_REQUEST
        return len(self._ring) > self._most or self._num_tracks > most_tracks

    def find(self, tenant: str, name: str) -> Timeline | None:
        """By the reply's id or the `x-request-id`; of several with one such header the newest."""
        return self._by_name.get((tenant, name))

    def on_report(self, report: Report) -> None:
        for request_id, event in report.events:
            found = self._by_request.get(request_id)
            if found is not None:
                timeline, track = found
                track.events.append(self._told(event, timeline))
        for delta in report.deltas:
            self._take(delta)

    def _take(self, delta: Delta) -> None:
        found = self._by_request.get(delta.request_id)
        if found is None:
            return
        timeline, track = found
        track.num_outputs += len(delta.token_ids)
        if delta.finish is not None:
            track.events = [self._told(event, timeline) for event in delta.finish.timeline]
            track.finish = delta.finish._replace(timeline=())

    def _told(self, event: Event, timeline: Timeline) -> Event:
        """As the tenant may know it."""
        if not self._are_apart:
            return event
        if event.reason is Reason.MISS_SALT:  # would tell what others' prompts are
            event = event._replace(reason=Reason.MISS_NEW, number=0)
        if not event.other or self._is_own(event.other, timeline):
            return event
        return event._replace(other=ANOTHER)

    def _is_own(self, request_id: str, timeline: Timeline) -> bool:
        found = self._by_request.get(request_id)
        return found is not None and found[0].tenant == timeline.tenant

    def _forget(self, timeline: Timeline) -> None:
        for name in timeline.names:
            if self._by_name.get(name) is timeline:
                del self._by_name[name]
        self._num_tracks -= len(timeline.tracks)
        for track in timeline.tracks:
            del self._by_request[track.request_id]


def _timeline(job: Job, now: float) -> Timeline:
    """Without the job, which holds the prompt."""
    return Timeline(
        id=job.id,
        created_s=job.created_s,
        model=job.model,
        tenant=job.arrival.tenant.name,
        request_id=job.arrival.request_id,
        arrived_s=job.arrival.arrived_s,
        handed_s=now,
        tracks=[Track(each.id, len(each.prompt_token_ids)) for each in job.requests],
    )
