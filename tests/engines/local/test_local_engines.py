"""Several engines on one machine are as one, and go on where one of them ends for good."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from quire.cache.sharing import SharingTerms
from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    SchedulingConfig,
    SupervisionConfig,
)
from quire.engine.orders import Probe, ResetPrefixCache, Unpin
from quire.engines.local import local_engines
from quire.engines.local.local_engines import LocalEngines
from quire.engines.process.client import Phase
from quire.engines.process.end_cause import EndCause
from quire.engines.process.request_table import GiveBack
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import Refused, TokenStream
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Finish
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engine.toy_starter import toy_starter

LONG = 500
"""Tokens that take an engine of the toy long enough to be killed meanwhile."""


def config_of(policy: PolicyName = PolicyName.FCFS, max_num_seqs: int = 8) -> EngineConfig:
    return EngineConfig(
        ModelConfig(TOY_MODEL),
        memory=MemoryConfig(num_gpu_blocks_override=4000),
        scheduling=SchedulingConfig(
            max_num_seqs=max_num_seqs, max_num_queued_reqs=64, scheduling_policy=policy
        ),
        parallel=ParallelConfig(2),
    )


@dataclass
class Running:
    engines: LocalEngines
    told: RecordingSubscriber

    async def reaches(self, phase: Phase, number: int | None = None) -> None:
        """Wait for a phase of the engine of a number, or of all as one."""

        def is_there() -> bool:
            of = self.engines if number is None else self.engines.processes[number]
            return of.phase is phase

        async with asyncio.timeout(60):
            while not is_there():
                await asyncio.sleep(0.01)

    def kill(self, number: int) -> None:
        process_id = self.engines.processes[number].process_id
        assert process_id is not None
        os.kill(process_id, signal.SIGKILL)


@asynccontextmanager
async def running(
    config: EngineConfig | None = None, max_restarts: int = 20
) -> AsyncIterator[Running]:
    supervision = SupervisionConfig(max_restarts, engine_standby=False)

    def open_supervisor(
        config: EngineConfig, subscriber: EngineSubscriber, give_back: GiveBack
    ) -> EngineSupervisor:
        return EngineSupervisor(config, subscriber, supervision, toy_starter(), give_back)

    told = RecordingSubscriber()
    engines = LocalEngines(config or config_of(), told, open_supervisor)
    await engines.start()
    try:
        run = Running(engines, told)
        await run.reaches(Phase.READY)
        yield run
    finally:
        await engines.close()


def request(number: int, max_tokens: int = 20, name: str = "request") -> NewRequest:
    prompt = tuple((number * 31 + i) % 200 for i in range(10 + number))
    return NewRequest(
        f"{name}-{number}", prompt, Sampling(seed=number), Stopping(max_tokens=max_tokens)
    )


async def read(stream: TokenStream) -> tuple[list[int], Finish]:
    await stream.accepted()
    token_ids: list[int] = []
    async for delta in stream:
        token_ids += delta.token_ids
        if delta.finish is not None:
            return token_ids, delta.finish
    raise AssertionError("the stream has no end")


async def read_all(streams: list[TokenStream]) -> list[list[int]]:
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


def routes(told: RecordingSubscriber) -> dict[str, list[str]]:
    """The engines of each request that has ended."""
    return {
        delta.request_id: [
            event.other for event in delta.finish.timeline if event.reason is Reason.ROUTED
        ]
        for output in told.outputs
        for delta in output.deltas
        if delta.finish is not None
    }


async def test_outputs_are_those_of_solo_runs_and_all_engines_work() -> None:
    async with running() as run:
        requests = [request(number) for number in range(24)]
        alone = [(await read_all([run.engines.submit(each)]))[0] for each in requests]
        together = [request(number, name="together") for number in range(24)]
        assert await read_all([run.engines.submit(each) for each in together]) == alone
        assert run.engines.num_unfinished == 0
        routed = routes(run.told)
        assert all(len(route) == 1 for route in routed.values())
        each = [[routed[r.id][0] for r in together].count(number) for number in ("0", "1")]
        assert min(each) > 7
        by_engine = run.engines.stats_by_replica
        assert sorted(by_engine) == ["0", "1"]
        total = run.told.outputs[-1].stats.num_generation_tokens
        assert total == 2 * sum(map(len, alone))
        assert sum(each.num_generation_tokens for each in by_engine.values()) == total


async def test_a_killed_engine_loses_nothing_and_keeps_its_counts() -> None:
    async with running() as run:
        requests = [request(number, LONG) for number in range(6)]
        alone = await read_all([run.engines.submit(each) for each in requests])
        again = [request(number, LONG, "again") for number in range(6)]
        streams = [run.engines.submit(each) for each in again]
        first = await begun(streams[0])
        run.kill(0)
        rest, *others = await read_all(streams)
        assert [first + rest, *others] == alone
        assert run.told.causes == [EndCause.KILLED]
        by_engine = run.engines.stats_by_replica.values()
        assert sum(each.num_generation_tokens for each in by_engine) >= 11 * LONG


async def test_an_engine_that_none_follows_gives_its_requests_to_the_other() -> None:
    async with running(max_restarts=0) as run:
        requests = [request(number, LONG) for number in range(6)]
        streams = [run.engines.submit(each) for each in requests]
        first = await begun(streams[0])
        run.kill(0)
        rest, *others = await read_all(streams)
        assert all(len(each) == LONG for each in (first + rest, *others))
        assert run.told.causes == [EndCause.REPLICA_LOST]
        moved = [route for route in routes(run.told).values() if route == ["0", "1"]]
        assert len(moved) == run.told.num_resumed[0] > 0
        assert run.engines.phase is Phase.READY
        assert len(await read_all([run.engines.submit(request(7))])) == 1
        run.kill(1)
        await run.reaches(Phase.DOWN)


async def test_forks_go_where_their_source_is() -> None:
    async with running() as run:
        parents = [request(number, 50, "parent") for number in range(4)]
        forks = [replace(each, id=f"{each.id}-fork", fork_of=each.id) for each in parents]
        pairs = zip(parents, forks, strict=True)
        await read_all([run.engines.submit(each) for pair in pairs for each in pair])
        routed = routes(run.told)
        assert all(routed[fork.id] == routed[fork.fork_of or ""] for fork in forks)
        assert run.told.outputs[-1].stats.num_forked_tokens > 0


async def test_orders_reach_all_engines() -> None:
    async with running() as run:
        prompt = request(150).prompt_token_ids
        assert (await run.engines.ask(Probe(prompt, SharingTerms()))).num_cached == 0
        await read_all([run.engines.submit(request(150))])
        found = await run.engines.ask(Probe(prompt, SharingTerms()))
        assert found.num_cached >= 144
        run.engines.order(ResetPrefixCache())
        async with asyncio.timeout(10):
            while found.num_cached:
                found = await run.engines.ask(Probe(prompt, SharingTerms()))
        stream = run.engines.submit(request(1, LONG, "long"))
        try:
            run.engines.submit(request(1, LONG, "long"))
        except Refused as refused:
            assert refused.refusal.reason is Reason.DUPLICATE_ID
        await begun(stream)
        run.engines.abort("long-1")
        _, finish = await read(stream)
        assert finish.reason is Reason.ABORTED


def ends(told: RecordingSubscriber) -> list[str]:
    """The requests that have ended, in their order."""
    return [
        delta.request_id
        for output in told.outputs
        for delta in output.deltas
        if delta.finish is not None
    ]


async def test_tenants_have_their_shares_of_both_engines() -> None:
    """The second tenant comes behind the first, which has filled both.

    Shares are compared as long as both engines have requests of both: then one that gets less of
    the machine than the other changes nothing.
    """
    async with running(config_of(PolicyName.FAIR, max_num_seqs=2)) as run:
        crowd = [
            replace(request(number, 50, tenant), tenant=tenant, weight=weight)
            for tenant, weight in (("a", 1.0), ("b", 2.0))
            for number in range(30)
        ]
        await read_all([run.engines.submit(each) for each in crowd])
        order, in_flight = ends(run.told), 4
        last = {routes(run.told)[name][0]: at for at, name in enumerate(order) if name[0] == "b"}
        assert last.keys() == {"0", "1"}
        served = [name[0] for name in order[: min(last.values()) + 1]]
        assert abs(served.count("b") - 2 * served.count("a")) <= 3 * in_flight


async def test_urgent_requests_pass_the_others_in_both_engines() -> None:
    async with running(config_of(PolicyName.PRIORITY, max_num_seqs=2)) as run:
        crowd = [replace(request(number, 50, "low"), priority=5) for number in range(40)]
        streams = [run.engines.submit(each) for each in crowd]
        await begun(streams[0])
        urgent = [replace(request(number, 50, "urgent"), priority=0) for number in range(4)]
        streams += [run.engines.submit(each) for each in urgent]
        num_before = len(ends(run.told))
        await read_all(streams[1:])
        after, route = ends(run.told)[num_before:], routes(run.told)
        num_running = 4
        for engine in ("0", "1"):
            order = "".join(name[0] for name in after if route[name][0] == engine)
            assert order[: order.rfind("u") + 1].count("l") <= 2 * num_running


async def test_a_prompt_is_pinned_in_all_engines_and_unpinned_likewise() -> None:
    async with running() as run:
        new = replace(request(150, 0), pins_prompt=True)
        _, finish = await read(run.engines.submit(new))
        assert Reason.PINNED in [event.reason for event in finish.timeline]

        async def holds(num_blocks: int) -> None:
            async with asyncio.timeout(10):
                while True:
                    by_engine = run.engines.stats_by_replica.values()
                    if [each.num_blocks_pinned for each in by_engine] == [num_blocks] * 2:
                        return
                    await asyncio.sleep(0.01)

        await holds(len(new.prompt_token_ids) // 16)
        run.engines.order(Unpin(new.id))
        await read_all([run.engines.submit(request(number)) for number in range(4)])
        await holds(0)


async def test_an_engine_that_none_followed_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_engines, "FIRST_RETRY_S", 0.1)
    async with running(max_restarts=0) as run:
        run.kill(0)
        await run.reaches(Phase.DOWN, number=0)
        await run.reaches(Phase.READY, number=0)
        await read_all([run.engines.submit(request(number)) for number in range(8)])
        assert {route[0] for route in routes(run.told).values()} == {"0", "1"}
