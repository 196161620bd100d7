"""The service is what all handlers share: the configuration, the models, and whether the server may
take work now.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from quire.server.config import ServerConfig
from quire.server.errors import RequestError, ShuttingDown
from quire.server.generation.checks import model_not_found
from quire.server.generation.input_reader import InputReader
from quire.server.http.bodies import BodyReader
from quire.server.http.loop_throttle import LoopThrottle
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.observability.metrics import ServerMetrics
from quire.server.observability.request_spans import RequestSpans
from quire.server.observability.timelines import Timelines
from quire.server.sources import Sources
from quire.server.tenancy.tenants import Tenants

logger = logging.getLogger(__name__)

WAITING_BODIES = 8
"""So many of the largest bodies may wait in each size class."""


class Observers(NamedTuple):
    """Observers of the requests of a server, whichever model they are for."""

    metrics: ServerMetrics
    timelines: Timelines


class Service:
    """The state of one server.

    arrival_throttle, work_throttle: the first is waited for by each head of a request, the second
        by each piece of the work for it: what comes at once is not done in one iteration of the
        event loop.
    spans: send what became of requests to a collector, if there is one.
    since_unix_s: the Unix time at which it was built; everything is counted since then.
    failure: why the start failed.
    num_open: requests without a complete answer; `bodies` still reads the bodies of some.
    has_started: the models that are loaded at the start are there, or are tried again.
    drains: done when the server begins to end. cut_off: done when what still runs must end.
    closes: done when no new request is taken: as soon as the server drains, or, where its socket is
        inherited, when all must end.
    """

    def __init__(
        self,
        config: ServerConfig,
        models: Sequence[ServedModel],
        tenants: Tenants,
        observers: Observers,
        sources: Sources,
    ) -> None:
        self.config = config
        self.models = tuple(models)
        self.tenants = tenants
        self.metrics, self.timelines = observers
        self.sources = sources
        self.spans = _request_spans(config, self.metrics, sources)
        self.failure: str | None = None
        self.has_started = False
        self._retries: list[asyncio.Task[None]] = []
        self.num_open = 0
        self.inputs = InputReader(
            max_body_bytes=config.max_body_bytes,
            max_waiting=WAITING_BODIES * config.max_body_bytes,
            clock=sources.clock,
        )
        self.began_s = sources.clock()
        self.since_unix_s = int(sources.now())
        loop = asyncio.get_running_loop()
        self.drains: asyncio.Future[None] = loop.create_future()
        self.cut_off: asyncio.Future[None] = loop.create_future()
        self.closes = self.cut_off if config.is_socket_inherited else self.drains
        self.bodies = BodyReader(config, self.metrics, self.cut_off)
        self.arrival_throttle, self.work_throttle = (
            LoopThrottle(sources.clock),
            LoopThrottle(sources.clock),
        )

    @property
    def default_model(self) -> ServedModel:
        """The first model: that of a request that names none, where there is no other."""
        return self.models[0]

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients may ask for."""
        return tuple(name for each in self.models for name in each.config.served_model_names)

    def find_model(self, name: str) -> ServedModel | None:
        """Return the model that a name or an alias is for, or None."""
        served = self.config.served_name(name)
        return next(
            (each for each in self.models if served in each.config.served_model_names), None
        )

    async def start(self) -> None:
        """Start the models; return when each that is loaded at the start is there or has failed.
        The start has failed where none is there and none is to come; else those that have failed
        are tried again."""
        await asyncio.gather(*(model.start() for model in self.models))
        if self.is_down:
            reasons = [f"{each.name}: {each.down_reason}" for each in self.models]
            several = "; ".join(reasons)
            self.failure = several if len(reasons) > 1 else self.default_model.down_reason
            return
        self.has_started = True
        for model in self.models:
            if model.state is ModelState.FAILED:
                logger.error("%s cannot be loaded: %s", model.name, model.down_reason)
                self._retries.append(asyncio.create_task(model.lifecycle.keep_loading()))

    async def close(self) -> None:
        """End the engines, and what reads bodies."""
        for retry in self._retries:
            retry.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)
        await self.inputs.close()
        await asyncio.gather(*(model.close() for model in self.models))

    def check_open(self) -> None:
        """Raise ShuttingDown where no request can be taken any more."""
        if self.closes.done():
            raise ShuttingDown

    def model_named(self, name: str | None) -> ServedModel:
        """Return the model that a name or an alias is for; without one, the only model. Raises
        RequestError."""
        if name is None:
            if len(self.models) > 1:
                names = ", ".join(self.model_names)
                raise RequestError(
                    f"Missing required field 'model': this server has {names}.",
                    param="model",
                    code="missing_required_parameter",
                )
            return self.default_model
        model = self.find_model(name)
        if model is None:
            raise model_not_found(name, self.model_names)
        return model

    @property
    def starting_model(self) -> ServedModel | None:
        """The first model that is not loaded yet but is to be before the server is ready."""
        return next((each for each in self.models if each.is_starting), None)

    @property
    def is_down(self) -> bool:
        """Whether no model can be used."""
        return all(model.state is ModelState.FAILED for model in self.models)

    @property
    def draining(self) -> bool:
        return self.drains.done()

    def drain(self) -> None:
        """Begin to end: no new connection is taken, and unless the socket is inherited no new
        request."""
        if not self.drains.done():
            self.drains.set_result(None)

    def cut(self) -> None:
        """End every response that still runs."""
        if not self.cut_off.done():
            self.cut_off.set_result(None)


def _request_spans(
    config: ServerConfig, metrics: ServerMetrics, sources: Sources
) -> RequestSpans | None:
    endpoint = config.model.engine.tracing.otlp_traces_endpoint
    if endpoint is None:
        return None
    return RequestSpans(endpoint, sources.now() - sources.clock(), metrics.dropped_traces)
