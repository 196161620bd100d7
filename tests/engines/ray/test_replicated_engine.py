"""Requests go to replicas, and on in another where their own is lost, with the same output."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from quire.cache.sharing import SharingTerms
from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
)
from quire.engine.orders import Probe, ResetPrefixCache
from quire.engines.process.client import Phase
from quire.engines.process.end_cause import EndCause
from quire.engines.process.token_stream import Refused, TokenStream
from quire.engines.ray.replicated_engine import ReplicatedEngine
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Finish
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engines.ray.local_replicas import LocalReplicas

CONFIG = EngineConfig(
    ModelConfig(TOY_MODEL),
    memory=MemoryConfig(num_gpu_blocks_override=4000),
    scheduling=SchedulingConfig(max_num_seqs=8, max_num_queued_reqs=64),
)
LONG = 1000
"""Tokens that take an engine of the toy long enough to be killed meanwhile."""


@dataclass
class Running:
    engine: ReplicatedEngine
    replicas: LocalReplicas
    told: RecordingSubscriber


@asynccontextmanager
async def running(num: int = 2, max_restarts: int = 20) -> AsyncIterator[Running]:
    replicas, told = LocalReplicas(CONFIG, num, max_restarts), RecordingSubscriber()
    engine = ReplicatedEngine(replicas, CONFIG, told)
    await engine.start()
    try:
        async with asyncio.timeout(60):
            while engine.phase is not Phase.READY:
                assert engine.phase is Phase.LOADING, engine.down_reason
                await asyncio.sleep(0.01)
        yield Running(engine, replicas, told)
    finally:
        await engine.close()


def request(number: int, max_tokens: int = 20, **fields: object) -> NewRequest:
    prompt = tuple((number * 31 + i) % 200 for i in range(10 + number))
    made = NewRequest(
        f"request-{number}", prompt, Sampling(seed=number), Stopping(max_tokens=max_tokens)
    )
    return replace(made, **fields)  # type: ignore[arg-type]


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
    return [event.other for event in finish.timeline if event.reason is Reason.ROUTED]


def num_generated_by_replicas(run: Running) -> int:
    """The tokens that all replicas have generated until now."""
    return sum(each.num_generation_tokens for each in run.engine.stats_by_replica.values())


@dataclass
class Shared:
    """Two replicas that several tests use, one after another, on one event loop."""

    runner: asyncio.Runner
    run: Running

    def do(self, work: Coroutine[None, None, None]) -> None:
        self.runner.run(work)


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with asyncio.Runner() as runner:
        opened = running()
        run = runner.run(opened.__aenter__())
        yield Shared(runner, run)
        runner.run(opened.__aexit__(None, None, None))


def named(requests: Sequence[NewRequest], prefix: str) -> list[NewRequest]:
    return [replace(each, id=f"{prefix}-{each.id}") for each in requests]


def test_outputs_are_those_of_solo_runs_and_timelines_name_the_replica(shared: Shared) -> None:
    run, requests = shared.run, [request(number) for number in range(12)]

    async def check() -> None:
        alone = [(await read_all([run.engine.submit(each)]))[0] for each in requests]
        before = run.told.outputs[-1].stats.num_generation_tokens
        before_by_replica = num_generated_by_replicas(run)
        streams = [run.engine.submit(each) for each in named(requests, "together")]
        ended = await asyncio.gather(*map(read, streams))
        assert [tokens for tokens, _ in ended] == alone
        routes = [route_of(finish) for _, finish in ended]
        assert sorted({name for route in routes for name in route}) == ["replica-1", "replica-2"]
        assert all(len(route) == 1 for route in routes)
        assert run.engine.num_unfinished == 0
        stats = run.told.outputs[-1].stats
        assert stats.num_generation_tokens - before == sum(map(len, alone))
        by_replicas = num_generated_by_replicas(run) - before_by_replica
        assert by_replicas == sum(map(len, alone))

    shared.do(check())


def test_outputs_of_a_step_travel_together(shared: Shared) -> None:
    run, before = shared.run, shared.run.replicas.num_items

    async def check() -> None:
        streams = [run.engine.submit(request(number, 200)) for number in range(16)]
        assert sum(map(len, await read_all(streams))) == 3200

    shared.do(check())
    assert run.replicas.num_items - before < 3200 / 3


def test_a_fork_stays_with_its_parent(shared: Shared) -> None:
    run = shared.run
    parents = named([request(number, 50) for number in range(4)], "parent")
    forks = [
        replace(each, id=f"{each.id}-fork", fork_of=each.id, sampling=Sampling(seed=9))
        for each in parents
    ]

    async def check() -> None:
        pairs = zip(parents, forks, strict=True)
        await read_all([run.engine.submit(each) for pair in pairs for each in pair])
        placed = dict(run.replicas.calls)
        for parent, fork in zip(parents, forks, strict=True):
            assert placed[parent.id] == placed[fork.id]
        assert run.told.outputs[-1].stats.num_forked_tokens > 0

    shared.do(check())


def test_an_aborted_request_ends_wherever_it_is(shared: Shared) -> None:
    run = shared.run
    requests = named([request(number, LONG) for number in range(4)], "abort")

    async def check() -> None:
        streams = [run.engine.submit(each) for each in requests]
        run.engine.abort(requests[0].id)  # no replica is known to have it
        await begun(streams[1])
        run.engine.abort(requests[1].id)
        async with asyncio.timeout(60):
            ended = [finish.reason for _, finish in await asyncio.gather(*map(read, streams))]
        assert ended[:2] == [Reason.ABORTED, Reason.ABORTED]
        assert ended[2:] == [Reason.MAX_TOKENS, Reason.MAX_TOKENS]
        assert run.engine.num_unfinished == 0

    shared.do(check())


def test_refusals_of_replicas_arrive(shared: Shared) -> None:
    run = shared.run

    async def check() -> None:
        stream = run.engine.submit(request(1, 10_000_000))
        with pytest.raises(Refused) as refused:
            await stream.accepted()
        assert refused.value.refusal.reason is Reason.CONTEXT_EXCEEDED
        twice = run.engine.submit(request(2))
        with pytest.raises(Refused):
            run.engine.submit(request(2))
        await read(twice)

    shared.do(check())


def test_probes_find_the_replica_that_has_most(shared: Shared) -> None:
    run, prompt = shared.run, request(150).prompt_token_ids

    async def check() -> None:
        assert (await run.engine.ask(Probe(prompt, SharingTerms()))).num_cached == 0
        await read(run.engine.submit(request(150)))
        found = await run.engine.ask(Probe(prompt, SharingTerms()))
        assert found.num_cached >= 144
        run.engine.order(ResetPrefixCache())
        async with asyncio.timeout(10):
            while found.num_cached:
                found = await run.engine.ask(Probe(prompt, SharingTerms()))

    shared.do(check())


async def test_a_lost_replica_and_a_killed_engine_lose_nothing() -> None:
    requests = [request(number, LONG) for number in range(6)]
    async with running() as run, asyncio.timeout(60):
        alone = await read_all([run.engine.submit(each) for each in named(requests, "calm")])
        streams = [run.engine.submit(each) for each in named(requests, "killed")]
        first = await begun(streams[0])
        lost = dict(run.replicas.calls)["killed-request-0"]
        await run.replicas.lose(lost)
        (last,) = run.replicas.replicas
        assert last.process_id is not None
        os.kill(last.process_id, signal.SIGKILL)
        (rest, finish), *others = await asyncio.gather(*map(read, streams))
        assert [first + rest, *(tokens for tokens, _ in others)] == alone
        assert sorted(run.told.causes) == [EndCause.KILLED, EndCause.REPLICA_LOST]
        route = route_of(finish)
        assert route[0] == lost
        assert list(run.engine.stats_by_replica) == [route[1]] != [lost]


@pytest.mark.long  # a lost replica is in every run
async def test_replicas_without_requests_are_heard_and_those_that_are_gone_forgotten() -> None:
    async with running() as run, asyncio.timeout(60):
        await read_all([run.engine.submit(request(number)) for number in (1, 2)])
        pinned = replace(request(100, max_tokens=0), pins_prompt=True)
        await read(run.engine.submit(pinned))
        before = len(run.told.outputs)
        while not any(each.usage.whole for each in run.told.outputs[before:]):
            await asyncio.sleep(0.1)  # until the pinned blocks are paid for
        assert len(run.engine.stats_by_replica) == 2
        await run.replicas.lose(run.replicas.replicas[0].name)
        while len(run.engine.stats_by_replica) == 2:
            await asyncio.sleep(0.1)
        await read(run.engine.submit(request(3)))


@pytest.mark.long  # a lost replica is in every run
async def test_a_replica_whose_engine_is_not_restarted_gives_its_requests_back() -> None:
    async with running(max_restarts=0) as run:
        stream = run.engine.submit(request(1, LONG))
        first = await begun(stream)
        name = dict(run.replicas.calls)["request-1"]
        (replica,) = (each for each in run.replicas.replicas if each.name == name)
        assert replica.process_id is not None
        os.kill(replica.process_id, signal.SIGKILL)
        async with asyncio.timeout(60):
            rest, finish = await read(stream)
        assert len(first + rest) == LONG
        assert len(route_of(finish)) == 2
