"""Keeps what happened to the last requests: the engine's events, as they come, in a bounded ring.

Neither text nor tokens are kept, nor anything that would tell one tenant of another's requests.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import msgspec

from quire.engine.messages import EngineOutput
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.step import Delta, Finish
from quire.server.observability.choice_times import ChoiceTimes, times_of
from quire.server.tenancy.tenants import IncomingRequest

MAX_LISTED = 100
"""So many timelines are listed."""
CHOICES_PER_REQUEST = 16
"""So many choices per request are kept on average: a request may have a thousand."""
ANOTHER = "another tenant"
"""Stands for the id of a request that is not known to be the reader's own."""


@dataclass(slots=True)
class ChoiceTimeline:
    """The events of one choice in the engine. A choice that ended is kept as `ended`, in msgpack:
    ten thousand choices are then no objects that the garbage collector would have to look at.
    `times` are those of a choice with latency targets."""

    tenant: str
    request_id: str
    num_prompt_tokens: int
    num_outputs: int = 0
    ended: bytes = b""
    live_events: list[Event] | None = None
    times: ChoiceTimes | None = None

    @property
    def finish(self) -> Finish | None:
        """The engine's account of the choice with its events, once it has ended."""
        return msgspec.msgpack.decode(self.ended, type=Finish) if self.ended else None

    def note(self, event: Event) -> None:
        if self.live_events is None:
            self.live_events = []
        self.live_events.append(event)
        if self.times is not None:
            self.times.note(event)

    def end(self, finish: Finish) -> None:
        if self.times is not None:
            self.times.end(finish)
        self.ended = msgspec.msgpack.encode(finish)
        self.live_events = None


@dataclass(slots=True)
class Timeline:
    """One HTTP request: it came at `arrived_s`, was submitted to the engine at `submitted_s`, and
    its client had all of the answer at `ended_s`; seconds of one clock, which the engine's events
    share. `ignored` are paths of what was left out of it.
    """

    id: str
    created_s: int
    model: str
    tenant: str
    request_id: str
    arrived_s: float
    submitted_s: float
    choices: list[ChoiceTimeline]
    ended_s: float | None = None
    refused: Reason | None = None
    ignored: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The names by which the timeline is found: tenant and id of the answer, tenant and
        `x-request-id`."""
        return (self.tenant, self.id), (self.tenant, self.request_id)


class TimelineRequest(Protocol):
    """A request that is submitted to the engine, as its timeline knows it."""

    @property
    def id(self) -> str: ...

    @property
    def created_s(self) -> int: ...

    @property
    def model(self) -> str: ...

    @property
    def arrival(self) -> IncomingRequest: ...

    @property
    def requests(self) -> Sequence[NewRequest]: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...


class Timelines:
    """Keeps the newest `max_timelines`, fewer where they have many choices. `are_apart`: there are
    tenants, who must not learn of each other."""

    def __init__(self, max_timelines: int, *, are_apart: bool) -> None:
        self._max_timelines = max_timelines
        self._are_apart = are_apart
        self._ring: deque[Timeline] = deque()
        self._num_choices = 0
        self._by_name: dict[tuple[str, str], Timeline] = {}
        self._by_request: dict[str, ChoiceTimeline] = {}

    def open(self, request: TimelineRequest, now: float) -> Timeline:
        """Return the timeline of a request that is submitted to the engine at `now`."""
        timeline = _timeline(request, now)
        if self._max_timelines == 0:
            return timeline
        self._ring.append(timeline)
        self._num_choices += len(timeline.choices)
        while len(self._ring) > 1 and self._are_too_many():
            self._forget(self._ring.popleft())
        for name in timeline.names:
            self._by_name[name] = timeline
        for choice in timeline.choices:
            self._by_request[choice.request_id] = choice
        return timeline

    def _are_too_many(self) -> bool:
        max_choices = self._max_timelines * CHOICES_PER_REQUEST
        return len(self._ring) > self._max_timelines or self._num_choices > max_choices

    def find(self, tenant: str, name: str) -> Timeline | None:
        """Find a timeline by the answer's id or the `x-request-id`, the newest of several with one
        header; None if none is kept."""
        return self._by_name.get((tenant, name))

    def of(self, tenant: str | None) -> list[Timeline]:
        """Return the newest timelines of a tenant, or with None of all, the last one first."""
        own = (each for each in reversed(self._ring) if tenant in (None, each.tenant))
        return list(islice(own, MAX_LISTED))

    def target_itl_ms(self, request_id: str) -> float | None:
        """Return the target of a request between its tokens, None where it has none or is not
        kept."""
        choice = self._by_request.get(request_id)
        if choice is None or choice.times is None or choice.times.target_itl_s is None:
            return None
        return 1000 * choice.times.target_itl_s

    def on_output(self, output: EngineOutput) -> None:
        for request_id, event in output.events:
            choice = self._by_request.get(request_id)
            if choice is not None and not choice.ended:
                choice.note(self._as_visible_to(event, choice.tenant))
        for delta in output.deltas:
            self.on_delta(delta)

    def on_delta(self, delta: Delta) -> None:
        """Take a delta of an output, and with the last one the account of the request."""
        choice = self._by_request.get(delta.request_id)
        if choice is None:
            return
        choice.num_outputs += len(delta.token_ids)
        if delta.finish is not None:
            events = tuple(
                self._as_visible_to(event, choice.tenant) for event in delta.finish.timeline
            )
            choice.end(delta.finish._replace(timeline=events))

    def _as_visible_to(self, event: Event, tenant: str) -> Event:
        """Return the event without what the tenant must not know."""
        if not self._are_apart:
            return event
        return visible_event(event, lambda request_id: self._is_own(request_id, tenant))

    def _is_own(self, request_id: str, tenant: str) -> bool:
        found = self._by_request.get(request_id)
        return found is not None and found.tenant == tenant

    def _forget(self, timeline: Timeline) -> None:
        for name in timeline.names:
            if self._by_name.get(name) is timeline:
                del self._by_name[name]
        self._num_choices -= len(timeline.choices)
        for choice in timeline.choices:
            del self._by_request[choice.request_id]


def visible_event(event: Event, is_own: Callable[[str], bool]) -> Event:
    """Return the event of a tenant's request without what the tenant must not know of others;
    `is_own` says whether the request of an id is the tenant's."""
    if event.reason is Reason.MISS_SALT:  # would tell what others' prompts are
        event = event._replace(reason=Reason.MISS_NEW, number=0)
    if not event.other or event.reason is Reason.ROUTED or is_own(event.other):
        return event
    return event._replace(other=ANOTHER)


def _timeline(request: TimelineRequest, now: float) -> Timeline:
    """Return a timeline that does not hold the request: that would keep the prompt."""
    tenant = request.arrival.tenant.name
    return Timeline(
        id=request.id,
        created_s=request.created_s,
        model=request.model,
        tenant=tenant,
        request_id=request.arrival.request_id,
        arrived_s=request.arrival.arrived_s,
        submitted_s=now,
        choices=[
            ChoiceTimeline(tenant, each.id, len(each.prompt_token_ids), times=times_of(each))
            for each in request.requests
        ],
        ignored=request.ignored,
    )
