"""Two engines of the toy as one, in both ways: processes of this machine, and replicas as on Ray
Serve, which here are on the event loop of the test."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    SchedulingConfig,
    SupervisionConfig,
)
from quire.engines.local.local_engines import LocalEngines
from quire.engines.process.client import EnginePhase
from quire.engines.process.request_table import GiveBack
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import TokenStream
from quire.engines.ray.replicated_engine import ReplicatedEngine
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Finish
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engine.toy_starter import toy_starter
from tests.engines.ray.local_replicas import LocalReplicas

LONG = 1000
"""Tokens that take an engine of the toy long enough to be killed meanwhile."""


@dataclass
class LocalRun:
    """Two processes as one engine."""

    engine: LocalEngines
    told: RecordingSubscriber
    names = ("0", "1")

    def process_id(self, name: str) -> int | None:
        return self.engine.processes[int(name)].process_id

    async def reaches(self, phase: EnginePhase, number: int | None = None) -> None:
        """Wait for a phase of the engine of a number, or of all as one."""

        def found() -> EnginePhase:
            of = self.engine if number is None else self.engine.processes[number]
            return of.phase

        async with asyncio.timeout(60):
            while found() is not phase:
                await asyncio.sleep(0.01)


@dataclass
class ReplicatedRun:
    """Two replicas as one engine."""

    engine: ReplicatedEngine
    told: RecordingSubscriber
    replicas: LocalReplicas
    names = ("replica-1", "replica-2")

    def process_id(self, name: str) -> int | None:
        (found,) = (each for each in self.replicas.replicas if each.name == name)
        return found.process_id


Run = LocalRun | ReplicatedRun


def kill(run: Run, name: str) -> None:
    process_id = run.process_id(name)
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


def config_of(
    policy: PolicyName = PolicyName.FCFS, max_num_seqs: int = 8, *, num_engines: int = 2
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(TOY_MODEL),
        memory=MemoryConfig(num_gpu_blocks_override=4000),
        scheduling=SchedulingConfig(
            max_num_seqs=max_num_seqs, max_num_queued_reqs=64, scheduling_policy=policy
        ),
        parallel=ParallelConfig(num_engines),
    )


@asynccontextmanager
async def local_engines(
    max_restarts: int = 20, config: EngineConfig | None = None
) -> AsyncIterator[LocalRun]:
    supervision = SupervisionConfig(max_restarts, engine_standby=False)

    def open_supervisor(
        config: EngineConfig, subscriber: EngineSubscriber, give_back: GiveBack
    ) -> EngineSupervisor:
        return EngineSupervisor(config, subscriber, supervision, toy_starter(), give_back)

    told = RecordingSubscriber()
    engines = LocalEngines(config or config_of(), told, open_supervisor)
    await engines.start()
    try:
        run = LocalRun(engines, told)
        await run.reaches(EnginePhase.READY)
        yield run
    finally:
        await engines.close()


@asynccontextmanager
async def replicas(max_restarts: int = 20) -> AsyncIterator[ReplicatedRun]:
    config, told = config_of(num_engines=1), RecordingSubscriber()
    local = LocalReplicas(config, 2, max_restarts)
    engine = ReplicatedEngine(local, config, told)
    await engine.start()
    try:
        async with asyncio.timeout(60):
            while engine.phase is not EnginePhase.READY:
                assert engine.phase is EnginePhase.LOADING, engine.down_reason
                await asyncio.sleep(0.01)
        yield ReplicatedRun(engine, told, local)
    finally:
        await engine.close()


def request(number: int, max_tokens: int = 20, name: str = "request") -> NewRequest:
    prompt = tuple((number * 31 + i) % 200 for i in range(10 + number))
    return NewRequest(
        f"{name}-{number}", prompt, Sampling(seed=number), Stopping(max_tokens=max_tokens)
    )


def forks_of(parents: Sequence[NewRequest]) -> list[NewRequest]:
    return [
        replace(each, id=f"{each.id}-fork", fork_of=each.id, sampling=Sampling(seed=9))
        for each in parents
    ]


async def read(stream: TokenStream) -> tuple[list[int], Finish]:
    await stream.accepted()
    token_ids: list[int] = []
    async for delta in stream:
        token_ids += delta.token_ids
        if delta.finish is not None:
            return token_ids, delta.finish
    raise AssertionError("the stream has no end")


async def read_all(streams: Sequence[TokenStream]) -> list[list[int]]:
    async with asyncio.timeout(60):
        return [tokens for tokens, _ in await asyncio.gather(*map(read, streams))]


async def outputs_of(run: Run, requests: Sequence[NewRequest]) -> list[list[int]]:
    """The outputs of requests that come together."""
    return await read_all([run.engine.submit(each) for each in requests])


async def begun(stream: TokenStream) -> list[int]:
    """The first tokens of an output."""
    await stream.accepted()
    token_ids: list[int] = []
    async for delta in stream:
        token_ids += delta.token_ids
        if len(token_ids) > 5:
            break
    return token_ids


def route_of(finish: Finish) -> list[str]:
    """The engines that a request had, one after the other."""
    return [event.other for event in finish.timeline if event.reason is Reason.ROUTED]


def routes(told: RecordingSubscriber) -> dict[str, list[str]]:
    """The requests that have ended, in their order, each with the engines that it had."""
    return {
        delta.request_id: route_of(delta.finish)
        for output in told.outputs
        for delta in output.deltas
        if delta.finish is not None
    }


def num_generated(run: Run) -> int:
    """The tokens that all engines have generated until now."""
    return sum(each.num_generation_tokens for each in run.engine.stats_by_replica.values())
