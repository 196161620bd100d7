"""The live view of one model: one watch of its engine, shared by all who look on.

The engine is told to begin when the first one comes, and to end when the last one goes. Each key
has a view of its own, encoded once for all who have the key. Nobody is waited for: who is slow
skips events, and gets a whole picture instead.

    engine ── LiveFrame ──► EnginePicture ──► LiveView by key ──► the last events ──► watchers
"""

import asyncio
import logging
from collections import deque

import msgspec

from quire.engine.messages import EngineFacts, EngineOutput
from quire.engine.orders import Watch
from quire.engines.protocol import EngineProtocol
from quire.scheduler.live.live_frame import LiveFrame
from quire.server.errors import TOO_MANY, UNAVAILABLE, RequestError
from quire.server.observability.live.engine_picture import EnginePicture
from quire.server.observability.live.live_view import BlockTotals, EngineFrame, LiveView, Moment
from quire.server.observability.live.step_figures import StepFigures
from quire.server.observability.live.wire import Figures, LiveChanges, LivePicture
from quire.server.observability.metrics import ModelMetrics
from quire.server.sources import Sources
from quire.server.tenancy.tenants import Tenant

logger = logging.getLogger(__name__)

INTERVAL_S = 0.25
"""An engine that is watched tells what has changed so often, at most."""
MAX_WATCHERS = 32
MAX_WATCHERS_PER_KEY = 8
"""So many may look on at a model at once, and so many with one key that is not the admin's."""
NUM_KEPT = 8
"""A watcher that is behind by more events than this skips them."""
RETRY_S = 10
_ENCODER = msgspec.json.Encoder()


class _SharedView:
    """A view, its last events as they are sent, and how many look on with it."""

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self.num_watchers = 0
        self.events: deque[bytes] = deque(maxlen=NUM_KEPT)
        self.picture: bytes | None = None


class LiveFeed:
    """Tells those who look on at one model what its engines tell, with figures of its `metrics`.
    Where tenants `are_apart`, each sees its own requests, the administrator those of all.
    `num_skipped` events were not sent to who was slow."""

    def __init__(
        self, model: str, metrics: ModelMetrics, sources: Sources, *, are_apart: bool
    ) -> None:
        self._model = model
        self._metrics = metrics
        self._sources = sources
        self._are_apart = are_apart
        self._engine: EngineProtocol | None = None
        self._picture: EnginePicture | None = None
        self._shape = BlockTotals(0, 0, 0)
        self._steps: StepFigures | None = None
        self._figures: Figures | None = None
        self._views: dict[str | None, _SharedView] = {}
        self._next_id = 0
        self._news = asyncio.Event()
        self.num_skipped = 0

    @property
    def num_watchers(self) -> int:
        """The number of those who look on."""
        return sum(each.num_watchers for each in self._views.values())

    def join(self, tenant: Tenant) -> "LiveWatcher":
        """Return a watcher for who has come with a key. Raises RequestError if too many have."""
        sees_all = tenant.is_admin or not self._are_apart
        name = None if sees_all else tenant.name
        shared = self._views.get(name)
        if not sees_all and shared is not None and shared.num_watchers >= MAX_WATCHERS_PER_KEY:
            raise _too_many(f"With this key {MAX_WATCHERS_PER_KEY} already look on", TOO_MANY)
        if self.num_watchers >= MAX_WATCHERS:
            raise _too_many(f"Already {MAX_WATCHERS} look on", UNAVAILABLE)
        is_first = not self._views
        if shared is None:
            shared = self._views[name] = self._new_view(name)
        shared.num_watchers += 1
        if is_first:
            self._watch()
        return LiveWatcher(self, name)

    def leave(self, name: str | None) -> None:
        """Note that one who looked on has gone."""
        shared = self._views[name]
        shared.num_watchers -= 1
        if not shared.num_watchers:
            del self._views[name]
        if not self._views:
            self._forget()
            if self._engine is not None:
                self._engine.order(Watch(None))

    def on_engine_ready(self, engine: EngineProtocol) -> None:
        """Note that an engine can be watched."""
        self._engine = engine
        self._watch()

    def on_engine_resumed(self) -> None:
        """Note that another process goes on for the engine."""
        self._watch()

    def on_engine_gone(self) -> None:
        """Note that there is no engine, or that another must be told anew."""
        self._forget()

    def on_output(self, output: EngineOutput) -> None:
        """Take in what the engine tells, once the metrics have."""
        if not self._views:
            return
        if self._steps is None:
            self._steps = StepFigures(self._metrics.stats, self._sources.clock())
        self._steps.add(output)
        if output.live is not None and (output.live.is_whole or self._picture is not None):
            try:
                self._take(output.live, self._steps)
            except Exception:  # who looks on must not cost the requests their engine
                logger.exception("what the engine tells of blocks and requests cannot be used")
                self._forget()

    def _watch(self) -> None:
        """Have the engine tell all there is, and then what changes, if anyone looks on."""
        self._forget()
        if self._views and self._engine is not None:
            self._engine.order(Watch(INTERVAL_S))

    def _forget(self) -> None:
        self._picture = self._steps = self._figures = None
        if self._engine is not None and self._engine.facts is not None:
            self._shape = _shape_of(self._engine.facts)
        for name, shared in self._views.items():
            self._views[name] = fresh = self._new_view(name)
            fresh.num_watchers = shared.num_watchers

    def _new_view(self, name: str | None) -> _SharedView:
        """Return a view that knows all that has been told."""
        names_keys = name is None and self._are_apart
        view = LiveView(self._shape, self._model, name, names_keys=names_keys)
        if self._picture is not None and self._figures is not None:
            sets = self._picture.sets
            view.apply(EngineFrame(self._picture.whole(), sets, (), self._figures, self._moment()))
        return _SharedView(view)

    def _moment(self) -> Moment:
        return Moment(round(self._sources.now(), 3), self._sources.clock())

    def _take(self, frame: LiveFrame, steps: StepFigures) -> None:
        """Hand a frame to all views, and keep what each makes of it."""
        moment, stats = self._moment(), self._metrics.stats
        if frame.is_whole:
            self._forget()
            self._picture = EnginePicture(self._shape.num_blocks + self._shape.num_host_blocks)
        assert self._picture is not None
        sets_before = self._picture.sets
        self._picture.apply(frame)
        figures = self._figures = steps.figures(stats, frame.num_unlisted, moment.clock_s)
        sets = {**sets_before, **dict(frame.sets)}
        told = EngineFrame(frame, sets, tuple(steps.preempted), figures, moment)
        for shared in self._views.values():
            changes = shared.view.apply(told)
            shared.events.append(event_of(changes))
            shared.picture = None
        if frame.is_whole:
            for shared in self._views.values():
                shared.events.clear()
        self._steps = StepFigures(stats, moment.clock_s)
        self._next_id += 1
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _picture_of(self, shared: _SharedView) -> bytes | None:
        """Return the picture of a view, None while nothing is told."""
        if shared.picture is None and self._figures is not None:
            shared.picture = event_of(shared.view.picture(self._moment(), self._figures))
        return shared.picture

    async def wait(self, id: int) -> None:
        """Wait until the event of this id, or a picture instead, may be there."""
        if self._next_id == id:
            await self._news.wait()

    def read(self, name: str | None, id: int | None) -> tuple[list[bytes], int]:
        """Return what to send to one who has all events before `id`, or with None nothing: events,
        or a picture where some are not kept. With them comes the id of the next event."""
        shared = self._views[name]
        num_missed = None if id is None else self._next_id - id
        if num_missed is not None and num_missed <= len(shared.events):
            events = list(shared.events)
            return events[len(events) - num_missed :], self._next_id
        picture = self._picture_of(shared)
        if picture is None:
            return [], self._next_id
        if num_missed is not None and len(shared.events) == NUM_KEPT:
            self.num_skipped += num_missed
        return [picture], self._next_id


class LiveWatcher:
    """One who looks on, until it is closed."""

    def __init__(self, feed: LiveFeed, name: str | None) -> None:
        self._feed = feed
        self._name = name
        self._next_id: int | None = None

    async def read(self) -> list[bytes]:
        """Wait for something to send, and return it."""
        while True:
            events, next_id = self._feed.read(self._name, self._next_id)
            if events:
                self._next_id = next_id
                return events
            await self._feed.wait(next_id)

    def close(self) -> None:
        """Look on no more."""
        self._feed.leave(self._name)


def event_of(body: LivePicture | LiveChanges | msgspec.Struct) -> bytes:
    """Return a body as a server-sent event."""
    return b"data: %s\n\n" % _ENCODER.encode(body)


def _shape_of(facts: EngineFacts) -> BlockTotals:
    return BlockTotals(facts.num_blocks, facts.num_host_blocks, facts.block_size)


def _too_many(what: str, status: int) -> RequestError:
    message = f"{what} at this model: close one of these streams, or try again later."
    return RequestError(message, code="too_many_watchers", status=status, retry_after_s=RETRY_S)
