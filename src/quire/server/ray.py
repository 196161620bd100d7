"""The server as an application of Ray Serve, and the server whose engines are replicas there.

`app` is for `serve run quire.server.ray:app model=MODEL replicas=2` and for the manifest of a
`RayService`: the HTTP front end is the ingress, which calls the deployment of the engines by its
handle. `quire serve --replicas 2` runs the front end in its own process instead.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from secrets import token_hex

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from quire.engine.config import EngineConfig
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.ray.replicated_engine import ReplicatedEngine
from quire.engines.ray.serve import ENGINE, ServeReplicas, bound_engine
from quire.server.app.app import build_app, build_service
from quire.server.app.replicas import replication_of
from quire.server.cli.options import OPTIONS
from quire.server.cli.settings import as_flag, read_config
from quire.server.config import InvalidOption, ServerConfig
from quire.server.generation.service import Service
from quire.server.sources import Sources

FRONT_END = "front-end"
MAX_HTTP_REQUESTS = 100_000
"""Serve hands the front end so many requests at once: it has limits of its own."""


NOT_ON_RAY = frozenset(("host", "port", "batch_dir", "data_parallel_size")) | {
    option.key for option in OPTIONS if option.key.startswith("ssl_")
}
"""Options of sockets and of one machine, which are not this server's own."""


class FrontEnd:
    """The HTTP front end as an ingress of Serve. `handles` are those of the models' engines, in the
    order of the models."""

    def __init__(self, config: ServerConfig, *handles: DeploymentHandle) -> None:
        self._config = config
        self._handles = handles
        self._service: Service | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Build the application on the replica's event loop."""
        sources = Sources(clock=time.monotonic, now=time.time, random_bytes=os.urandom)
        self._service = build_service(self._config, self._open_engine, sources)
        return build_app(self._service)

    def check_health(self) -> None:
        """Raise RuntimeError if the front end could not start, or no model can be used."""
        service = self._service
        if service is not None and (service.failure or (service.has_started and service.is_down)):
            raise RuntimeError(service.failure or "no model can be used")

    def _open_engine(self, engine: EngineConfig, subscriber: EngineSubscriber) -> ReplicatedEngine:
        index = [each.engine for each in self._config.models].index(engine)
        handle, num = self._handles[index], self._config.replicas or 1
        return ReplicatedEngine(
            ServeReplicas(lambda: handle, lambda: None, num), engine, subscriber
        )


def app(args: Mapping[str, object]) -> Application:
    """Return the application with the options of `quire serve` in `args`, by their names with `_`
    or `-`. Raises InvalidOption."""
    given = {name.replace("-", "_"): as_flag(value) for name, value in args.items()}
    for name in given:
        if name in NOT_ON_RAY or name not in (option.key for option in OPTIONS):
            raise InvalidOption(
                f"{name} is no option of the server on Ray Serve: it has those of `quire serve`, "
                f"but for {', '.join(sorted(NOT_ON_RAY))}, which are not its own"
            )
    config = read_config(given, {})
    if config.tenant_secret is None:  # front ends that share blocks need the same
        config = replace(config, tenant_secret=token_hex(32))
    engines = [
        bound_engine(
            replication_of(config, model),
            ENGINE if len(config.models) == 1 else f"{ENGINE}-{index}",
        )
        for index, model in enumerate(config.models)
    ]
    front_end = serve.deployment(
        serve.ingress()(FrontEnd), name=FRONT_END, max_ongoing_requests=MAX_HTTP_REQUESTS
    )
    return front_end.bind(config, *engines)
