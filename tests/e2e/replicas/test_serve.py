"""Replicas on a Ray of the test's own: nothing is lost, whatever becomes of them.

`make ray-check` runs this; it wants the extra `ray`.
"""

import asyncio
import os
import signal
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import psutil
import pytest

from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
    SupervisionConfig,
)
from quire.engines.process.client import EnginePhase
from quire.engines.process.end_cause import EndCause
from quire.engines.ray.config import ReplicaRouting, ReplicationConfig
from quire.engines.ray.messages import Call, Collect, decode_collected, encode
from quire.engines.ray.replicated_engine import ReplicatedEngine
from quire.scheduler.reasons import Reason
from tests.e2e.server_process import engines_of
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engines.several import begun, read, request, route_of

pytest.importorskip("ray", reason="the extra `ray` is not installed: `make ray-check`")
with warnings.catch_warnings(action="ignore"):  # of what Ray itself imports
    from quire.engines.ray.serve import Cluster, ServeReplicas

CONFIG = EngineConfig(
    ModelConfig(TOY_MODEL),
    memory=MemoryConfig(num_gpu_blocks_override=8000),
    scheduling=SchedulingConfig(max_num_seqs=32, max_num_queued_reqs=64),
)
SUPERVISION = SupervisionConfig(engine_standby=False)
LONG = 1900
APP = "test"

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@dataclass
class Running:
    engine: ReplicatedEngine
    told: RecordingSubscriber
    cluster: Cluster
    replicas: ServeReplicas

    async def names(self) -> set[str]:
        """Return the names of the replicas that take calls."""
        answers = await self.replicas.order_all(Call(encode(Collect()), front_end="a test"))
        return {decode_collected(answer).replica for answer in answers}

    async def has(self, num: int) -> None:
        """Return when there are so many replicas."""
        while len(await self.names()) != num:
            await asyncio.sleep(0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(None, 4)
    made.connect()
    yield made
    made.close()


@asynccontextmanager
async def running(cluster: Cluster, config: ReplicationConfig) -> AsyncIterator[Running]:
    replicas = ServeReplicas(
        partial(cluster.deploy, APP, config), partial(cluster.undeploy, APP), config.num_replicas
    )
    told = RecordingSubscriber()
    engine = ReplicatedEngine(replicas, CONFIG, told)
    await engine.start()
    try:
        async with asyncio.timeout(120):
            while engine.phase is EnginePhase.LOADING:
                await asyncio.sleep(0.05)
        assert engine.phase is EnginePhase.READY, engine.down_reason
        yield Running(engine, told, cluster, replicas)
    finally:
        await engine.close()


async def test_killed_engines_and_replicas_lose_nothing(cluster: Cluster) -> None:
    requests = [request(number, LONG) for number in range(8)]
    config = ReplicationConfig(CONFIG, SUPERVISION, 2, routing=ReplicaRouting.LOAD)
    async with running(cluster, config) as run:

        async def outputs(name: str) -> list[asyncio.Task[tuple[list[int], list[str]]]]:
            streams = [run.engine.submit(replace(e, id=f"{name}-{e.id}")) for e in requests]

            async def whole(index: int) -> tuple[list[int], list[str]]:
                first = await begun(streams[index])
                rest, finish = await read(streams[index])
                return first + rest, route_of(finish)

            return [asyncio.create_task(whole(index)) for index in range(len(requests))]

        async with asyncio.timeout(200):
            expected = await asyncio.gather(*await outputs("calm"))
            assert len({name for _, route in expected for name in route}) == 2
            tasks = await outputs("killed")
            await asyncio.sleep(0.5)
            first, second = engines_of(os.getpid())
            host = psutil.Process(second.ppid())
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            os.kill(host.pid, signal.SIGKILL)
            found = await asyncio.gather(*tasks)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert max(len(route) for _, route in found) >= 2
        assert sorted(run.told.causes) == [EndCause.KILLED, EndCause.REPLICA_LOST]


async def under_load(run: Running, change: Callable[[], Awaitable[None]]) -> set[str]:
    """Change something while 8 clients want 300 tokens again and again, until two replicas have had
    a part in it: each output must be what it was before. Return those replicas."""
    is_over, names = asyncio.Event(), set[str]()
    reference = {
        number: (await read(run.engine.submit(request(number, 300))))[0] for number in range(10)
    }

    async def load(client: int) -> None:
        turn = 0
        while not is_over.is_set():
            number, turn = (client + turn) % 10, turn + 1
            made = replace(request(number, 300), id=f"{client}-{turn}-{time.monotonic()}")
            tokens, finish = await read(run.engine.submit(made))
            assert finish.reason is Reason.MAX_TOKENS
            assert tokens == reference[number]
            names.update(route_of(finish))

    clients = [asyncio.create_task(load(client)) for client in range(8)]
    await change()
    while len(names) < 2:
        await asyncio.sleep(0.1)
    is_over.set()
    await asyncio.gather(*clients)
    return names


async def test_replicas_that_come_and_go_lose_nothing(cluster: Cluster) -> None:
    scheduling = replace(CONFIG.scheduling, max_num_seqs=6)
    config = ReplicationConfig(
        replace(CONFIG, scheduling=scheduling),
        SUPERVISION,
        1,
        2,
        upscale_delay_s=1.0,
        downscale_delay_s=1.0,
    )
    async with running(cluster, config) as run, asyncio.timeout(280):
        first = await run.names()
        assert first < await under_load(run, partial(run.has, 2))
        await run.has(1)
        again = replace(config, routing=ReplicaRouting.LOAD)
        replaces_all = partial(asyncio.to_thread, cluster.deploy, APP, again)
        await under_load(run, replaces_all)
        assert run.engine.num_unfinished == 0
