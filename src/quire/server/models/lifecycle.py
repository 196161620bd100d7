"""The states of a served model: loaded when it is asked for, unloaded when nobody has used it for a
while.

                 enter, begin                      enter may return
    UNLOADED ────────────────► LOADING ──────────► LOADED
       ▲                          │                  │ idle, or asked for
       │                          ▼                  ▼
       │ next try, later        FAILED           UNLOADING   what runs ends first
       └──────────────────────────┴──────────────────┘

Requests wait while the model loads or unloads: none is lost, and none gets in while it ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from quire.server.errors import UNAVAILABLE, Overloaded, RequestError, retry_after_s

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""A load that failed may be tried again after so long, twice as long after each further failure."""


class ModelState(StrEnum):
    """The states of a served model."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


class UnloadReason(StrEnum):
    """The reasons why a model is unloaded: nobody used it, or somebody asked for it."""

    IDLE = "idle"
    ASKED = "asked"


class LoadFailed(Exception):
    """The model cannot be loaded; the text says why."""


class NotLoaded(RequestError):
    """The model that a request names could not be loaded."""

    def __init__(self, message: str, wait_s: float) -> None:
        seconds = retry_after_s(wait_s)
        super().__init__(
            message, code="model_load_failed", status=UNAVAILABLE, retry_after_s=seconds
        )


class Actions(NamedTuple):
    """The actions that load a model and unload it. `load` raises LoadFailed."""

    load: Callable[[], Awaitable[None]]
    unload: Callable[[], Awaitable[None]]


class WaitLimits(NamedTuple):
    """The most requests, and bytes of their bodies, that wait for a model to load."""

    num_requests: int
    num_bytes: int


@dataclass(slots=True)
class LifecycleCounts:
    """Counts of loads by how they ended, and of unloads by why."""

    loads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("loaded", "failed"), 0))
    unloads: dict[UnloadReason, int] = field(default_factory=lambda: dict.fromkeys(UnloadReason, 0))


class Lifecycle:
    """Loads and unloads one model.

    unload_after_s: seconds without a request after which it is unloaded; None: never.
    num_active: requests that use it. num_waiting: those that wait until they may.
    failure: why the last load failed, while no other has been tried.
    """

    def __init__(
        self,
        actions: Actions,
        *,
        unload_after_s: float | None,
        limits: WaitLimits,
        clock: Callable[[], float],
    ) -> None:
        self.state = ModelState.UNLOADED
        self.failure: str | None = None
        self.num_active = 0
        self.num_waiting = 0
        self.counts = LifecycleCounts()
        self._actions = actions
        self._unload_after_s = unload_after_s
        self._limits = limits
        self._num_waiting_bytes = 0
        self._clock = clock
        self._num_failures = 0
        self._retry_s = 0.0
        self._load_s: float | None = None
        self._turn: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._freed: asyncio.Event = asyncio.Event()

    async def enter(self, num_bytes: int = 0) -> None:
        """Return when the model may be used, until `leave`; a body of `num_bytes` waits as long.
        Raises RequestError where it cannot be loaded, or where too much waits. Cancelling waits no
        more."""
        if self.state is not ModelState.LOADED:
            await self._wait(num_bytes)
        self.num_active += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def hold(self) -> None:
        """Use the model for something more, which ends with a `leave` of its own, while it is
        used."""
        assert self.num_active > 0
        self.num_active += 1

    def leave(self) -> None:
        """End one use of the model."""
        self.num_active -= 1
        if self.num_active == 0:
            self._freed.set()
            self._watch_idle()

    async def _wait(self, num_bytes: int) -> None:
        waiting_bytes = self._num_waiting_bytes + num_bytes
        if self.num_waiting >= self._limits.num_requests or waiting_bytes > self._limits.num_bytes:
            message = f"The server is full: {self.num_waiting} requests wait for the model to load."
            raise Overloaded(message, self._load_s)
        self.num_waiting += 1
        self._num_waiting_bytes += num_bytes
        try:
            while self.state is not ModelState.LOADED:
                if self.state is ModelState.FAILED and self.retry_in_s > 0:
                    message = f"The model could not be loaded: {self.failure}"
                    raise NotLoaded(message, self.retry_in_s)
                await asyncio.shield(self._begin())
        finally:
            self.num_waiting -= 1
            self._num_waiting_bytes -= num_bytes
            self._watch_idle()

    @property
    def retry_in_s(self) -> float:
        """The seconds in which a load that failed is tried again, if a request comes then."""
        return max(self._retry_s - self._clock(), 0.0)

    async def keep_loading(self) -> None:
        """Try again to load the model, whether or not a request comes, until it is there."""
        while self.state is ModelState.FAILED:
            await asyncio.sleep(self.retry_in_s)
            await self.load()

    async def load(self) -> None:
        """Load the model, at once also where the last load has just failed; `state` tells how it
        went."""
        while self.state is not ModelState.LOADED:
            is_load = self.state is not ModelState.UNLOADING
            await asyncio.shield(self._begin())
            if is_load:
                return

    def _begin(self) -> asyncio.Task[None]:
        """Begin to load the model, unless it loads or unloads just now; return what then runs."""
        if self._turn is None or self._turn.done():
            self.state = ModelState.LOADING
            self._turn = asyncio.get_running_loop().create_task(self._load())
        return self._turn

    async def _load(self) -> None:
        began_s = self._clock()
        try:
            await self._actions.load()
        except LoadFailed as error:
            self._fail(str(error))
        except Exception as error:  # a load that fails in a way nobody thought of is still failed
            logger.exception("the load of a model failed")
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self.failure = None
            self._num_failures = 0
            self._load_s = self._clock() - began_s
            self.counts.loads["loaded"] += 1
            self.state = ModelState.LOADED
            self._watch_idle()

    def _fail(self, why: str) -> None:
        wait_s = min(FIRST_RETRY_S * 2**self._num_failures, LAST_RETRY_S)
        self._num_failures = min(self._num_failures + 1, 10)
        self._retry_s = self._clock() + wait_s
        self.failure = why
        self.counts.loads["failed"] += 1
        self.state = ModelState.FAILED

    def _watch_idle(self) -> None:
        """Unload the model in a while, if nobody uses it until then."""
        if self._unload_after_s is not None and self._is_idle and self._idle is None:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._unload_after_s, self._unload_if_idle)

    @property
    def _is_idle(self) -> bool:
        return self.state is ModelState.LOADED and not (self.num_active or self.num_waiting)

    def _unload_if_idle(self) -> None:
        self._idle = None
        if self._is_idle:
            self._begin_unload(UnloadReason.IDLE, within_s=0.0)

    def _begin_unload(self, reason: UnloadReason, within_s: float) -> asyncio.Task[None]:
        self.state = ModelState.UNLOADING
        unload = self._unload(reason, within_s)
        self._turn = asyncio.get_running_loop().create_task(unload)
        return self._turn

    async def unload(self, within_s: float) -> bool:
        """Unload the model once what runs has ended; return False, and change nothing, if that
        takes more than `within_s` seconds. What comes meanwhile waits, and loads it again."""
        if self.state in (ModelState.LOADING, ModelState.UNLOADING):
            assert self._turn is not None
            await asyncio.shield(self._turn)
        if self.state is ModelState.LOADED:
            await asyncio.shield(self._begin_unload(UnloadReason.ASKED, within_s))
        return self.state is not ModelState.LOADED

    async def _unload(self, reason: UnloadReason, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.num_active:
                    self._freed.clear()
                    await self._freed.wait()
        if self.num_active:
            self.state = ModelState.LOADED
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            await self._actions.unload()
        except Exception:  # whatever it left behind, the next load begins anew
            logger.exception("the unload of a model failed")
        self.counts.unloads[reason] += 1
        self.state = ModelState.UNLOADED

    async def close(self) -> None:
        """End what loads or unloads the model just now, before the server ends."""
        if self._idle is not None:
            self._idle.cancel()
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.gather(self._turn, return_exceptions=True)
