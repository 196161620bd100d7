"""Replicas as a deployment of Ray Serve, and the calls of a front end to them.

Serve starts and watches the replicas, chooses one for each call, makes as many as the load asks
for, and lets them drain. Each call of a request lasts as long as the request, so that Serve's
counts of calls are counts of requests.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

import ray
from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, LoggingConfig

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engine.messages import EngineFacts
from quire.engines.process.token_stream import EngineDown
from quire.engines.ray.config import ReplicaRouting, ReplicationConfig
from quire.engines.ray.messages import Call, decode_facts
from quire.engines.ray.ray_log import join_logs
from quire.engines.ray.replica import Replica
from quire.engines.ray.replicas import ReplicaLost

logger = logging.getLogger(__name__)

ENGINE = "engine"
"""The name of the deployment of the replicas."""
ROUTERS = {
    ReplicaRouting.PREFIX: "quire.engines.ray.serve_router.PrefixRouter",
    ReplicaRouting.LOAD: "quire.engines.ray.serve_router.LoadRouter",
}
IMBALANCE = 8
"""A replica with so many more requests than another gets none for its prefixes alone."""
TREE_CHARACTERS = 4_000_000
"""The router remembers so many tokens of prompts of each model, some hundred MB at most."""
TREE_CHECK_S = 10
MAX_STARTS = 3
"""A replica whose engine does not load is tried so often."""
HEALTH_PERIOD_S = 2.0
ORDER_TIMEOUT_S = 30.0
STATUS_S = 0.1
FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.DELETING)
OBJECT_STORE_BYTES = 128 << 20
"""The memory of a Ray of the server's own for large objects, of which there are none."""


class ServedReplica:
    """A replica as Serve hosts it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: EngineConfig, supervision: SupervisionConfig
    ) -> None:
        name = serve.get_replica_context().replica_id.unique_id
        self._replica = Replica(name, config, supervision)
        await self._replica.start()

    async def facts(self, call: Call) -> bytes:
        """Return the facts of the engine, encoded."""
        return self._replica.facts()

    async def generate(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Run the request of a call."""
        async with aclosing(self._replica.generate(call)) as items:
            async for item in items:
                yield item

    async def order(self, call: Call) -> bytes:
        """Do what the body of a call says, and return the answer."""
        return await self._replica.order(call)

    async def check_health(self) -> None:
        """Raise EngineDown if the engine has ended for good: Serve replaces the replica then."""
        self._replica.check()

    async def __del__(self) -> None:
        """End the engine, once Serve has drained the replica."""
        await self._replica.close()


def bound_engine(config: ReplicationConfig, name: str = ENGINE) -> Application:
    """Return the deployment of the replicas under a name, bound to what each is built from."""
    return _deployment(config).options(name=name).bind(config.engine, config.supervision)


def _deployment(config: ReplicationConfig) -> Deployment:
    """Return the deployment of the replicas. Each has as many CPUs as its engine has threads, and a
    GPU if the cluster has any and the model's device is not the CPU."""
    device = config.engine.model.device
    wants_gpu = device.startswith("cuda") or (
        device == "auto" and ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0
    )
    scheduling = config.engine.scheduling
    deployment: Deployment = serve.deployment(
        ServedReplica,
        max_ongoing_requests=scheduling.max_num_seqs + scheduling.max_num_queued_reqs,
        graceful_shutdown_timeout_s=config.drain_s,
        health_check_period_s=HEALTH_PERIOD_S,
        max_constructor_retry_count=MAX_STARTS,
        ray_actor_options={
            "num_cpus": config.engine.model.num_threads or 1,
            "num_gpus": int(wants_gpu),
        },
        request_router_config=_router(config.routing),
        logging_config=LoggingConfig(enable_access_log=False),
    )
    if config.max_replicas is None:
        return deployment.options(num_replicas=config.num_replicas)
    scaling = AutoscalingConfig(
        min_replicas=config.num_replicas,
        max_replicas=config.most_replicas,
        upscale_delay_s=config.upscale_delay_s,
        downscale_delay_s=config.downscale_delay_s,
        target_ongoing_requests=max(scheduling.max_num_seqs / 2, 1),
    )
    return deployment.options(autoscaling_config=scaling)


def _router(routing: ReplicaRouting) -> RequestRouterConfig:
    """Return what chooses replicas."""
    options: dict[str, object] = {}
    if routing is ReplicaRouting.PREFIX:
        options = {
            "imbalanced_threshold": IMBALANCE,
            "do_eviction": True,
            "eviction_threshold_chars": TREE_CHARACTERS,
            "eviction_target_chars": TREE_CHARACTERS * 9 // 10,
            "eviction_interval_secs": TREE_CHECK_S,
        }
    return RequestRouterConfig(request_router_class=ROUTERS[routing], request_router_kwargs=options)


class ServeReplicas:
    """The replicas behind the handle of their deployment, which `deploy` returns and `undeploy`
    makes useless, where they are this front end's own; both may take long."""

    def __init__(
        self, deploy: Callable[[], DeploymentHandle], undeploy: Callable[[], None], num: int
    ) -> None:
        self._deploy = deploy
        self._undeploy = undeploy
        self._num = num
        self._is_deployed = False

    @property
    def progress(self) -> tuple[str, int, int]:
        """The phase of the start."""
        return "replicas", 0, self._num

    async def start(self) -> EngineFacts:
        """Deploy the replicas, and return the facts of the engine of one. Raises EngineDown."""
        try:
            self._is_deployed = True
            handle = await asyncio.to_thread(self._deploy)
            self._generate = handle.options(method_name="generate", stream=True)
            self._order = handle.options(method_name="order")
            self._all = handle
            facts: bytes = await handle.options(method_name="facts").remote(Call(b""))
        except Exception as error:
            raise EngineDown(f"the replicas do not start: {_told(error)}") from error
        return decode_facts(facts)

    async def generate(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Yield the items of a request. Raises ReplicaLost."""
        response = self._generate.remote(call)
        has_ended = False
        try:
            async for item in response:
                yield item
            has_ended = True
        except Exception as error:
            has_ended = True
            raise ReplicaLost(_told(error)) from error
        finally:
            if not has_ended:
                response.cancel()

    async def order(self, call: Call) -> bytes:
        """Return what a replica answers. Raises ReplicaLost."""
        try:
            answer: bytes = await self._order.remote(call)
        except Exception as error:
            raise ReplicaLost(_told(error)) from error
        return answer

    async def order_all(self, call: Call) -> list[bytes]:
        """Return what each replica answers. Raises ReplicaLost."""
        try:
            response = self._all.broadcast("order", call)
            answers: list[bytes] = await response.results_async(timeout_s=ORDER_TIMEOUT_S)
        except Exception as error:
            raise ReplicaLost(_told(error)) from error
        return answers

    async def close(self) -> None:
        """End the replicas if they are this front end's own."""
        if self._is_deployed:
            await asyncio.to_thread(self._undeploy)


def _told(error: Exception) -> str:
    """Return what an error says, for people, in its last line: the first ones are a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


class Cluster:
    """The Ray cluster at `address`, or with None a Ray of this process' own, which ends with it and
    counts `num_cpus` CPUs.

    `connect` in the main thread, before anything else handles signals: Ray would take them over.
    The other methods may be called in any thread.
    """

    def __init__(self, address: str | None, num_cpus: int) -> None:
        self._address = address
        self._num_cpus = num_cpus

    def connect(self) -> None:
        """Connect to the cluster, or start one. Raises ConnectionError."""
        with _same_log():
            join_logs()
            if self._address is None:
                ray.init(
                    address="local",
                    num_cpus=self._num_cpus,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    configure_logging=False,
                )
            else:
                ray.init(address=self._address, configure_logging=False)
            serve.start(proxy_location="Disabled")
            import quire.engines.ray.serve_router  # noqa: F401  # for the log's sake: see below

    def deploy(self, app: str, config: ReplicationConfig) -> DeploymentHandle:
        """Deploy replicas as an application of Serve, or change those of before; return once they
        are ready. Raises RuntimeError where they do not become so, as where they are ended first,
        which `serve.run` would wait for in vain."""
        target = serve.RunTarget(bound_engine(config), name=app, route_prefix=None)
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        while True:
            told = serve.status().applications.get(app)
            if told is None or told.status in FAILED:
                raise RuntimeError(told.message if told is not None else "they were ended")
            if told.status is ApplicationStatus.RUNNING:
                return handle
            time.sleep(STATUS_S)

    def undeploy(self, app: str) -> None:
        """End the replicas of an application."""
        serve.delete(app)

    def close(self) -> None:
        """Leave the cluster, and end what is this process' own."""
        if self._address is None:
            serve.shutdown()
        ray.shutdown()


@contextmanager
def _same_log() -> Iterator[None]:
    """Keep the log as it is: the package of Ray's router replaces all handlers as it is
    imported."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
