"""Properties of several engines that answer as one, on one machine or as replicas."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from quire.cache.sharing import SharingTerms
from quire.engine.orders import PrefixQuery, ResetPrefixCache
from quire.engines.process.end_cause import EndCause
from quire.engines.process.token_stream import RequestRefused
from quire.scheduler.reasons import Reason
from tests.engines.several import (
    LONG,
    Run,
    begun,
    forks_of,
    kill,
    local_engines,
    num_generated,
    outputs_of,
    read,
    read_all,
    replicas,
    request,
    routes,
)

WAYS: dict[str, Callable[..., AbstractAsyncContextManager[Run]]] = {
    "local": local_engines,
    "replicas": replicas,
}


@dataclass
class Shared:
    """Two engines that several tests use, one after another, on one event loop."""

    runner: asyncio.Runner
    run: Run

    def do(self, work: Coroutine[None, None, None]) -> None:
        self.runner.run(work)


@pytest.fixture(scope="module", params=WAYS)
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    with asyncio.Runner() as runner:
        opened = WAYS[request.param]()
        run = runner.run(opened.__aenter__())
        yield Shared(runner, run)
        runner.run(opened.__aexit__(None, None, None))


def test_outputs_are_those_of_solo_runs_and_all_engines_work(shared: Shared) -> None:
    run, requests = shared.run, [request(number) for number in range(24)]

    async def check() -> None:
        alone = [(await outputs_of(run, [each]))[0] for each in requests]
        before = run.told.outputs[-1].stats.num_generation_tokens, num_generated(run)
        together = [request(number, name="together") for number in range(24)]
        assert await outputs_of(run, together) == alone
        assert run.engine.num_unfinished == 0
        routed = [routes(run.told)[each.id] for each in together]
        assert all(len(route) == 1 for route in routed)
        assert min(routed.count([name]) for name in run.names) > 7
        assert sorted(run.engine.stats_by_replica) == sorted(run.names)
        after = run.told.outputs[-1].stats.num_generation_tokens, num_generated(run)
        counted = [now - then for now, then in zip(after, before, strict=True)]
        assert counted == [sum(map(len, alone))] * 2

    shared.do(check())


def test_a_fork_stays_with_its_parent(shared: Shared) -> None:
    run, parents = shared.run, [request(number, 50, "parent") for number in range(4)]
    forks = forks_of(parents)

    async def check() -> None:
        pairs = zip(parents, forks, strict=True)
        await outputs_of(run, [each for pair in pairs for each in pair])
        routed = routes(run.told)
        assert all(routed[fork.id] == routed[fork.fork_of or ""] for fork in forks)
        assert run.told.outputs[-1].stats.num_forked_tokens > 0

    shared.do(check())


def test_an_aborted_request_ends_wherever_it_is(shared: Shared) -> None:
    run, requests = shared.run, [request(number, LONG, "abort") for number in range(4)]

    async def check() -> None:
        streams = [run.engine.submit(each) for each in requests]
        run.engine.abort(requests[0].id)  # no engine is known to have it
        await begun(streams[1])
        run.engine.abort(requests[1].id)
        async with asyncio.timeout(60):
            reasons = [(await read(each))[1].reason for each in streams]
        assert reasons == [Reason.ABORTED] * 2 + [Reason.MAX_TOKENS] * 2
        assert run.engine.num_unfinished == 0

    shared.do(check())


def test_refusals_arrive(shared: Shared) -> None:
    run = shared.run

    async def check() -> None:
        with pytest.raises(RequestRefused) as refused:
            await run.engine.submit(request(1, 10_000_000, "long")).accepted()
        assert refused.value.refusal.reason is Reason.CONTEXT_EXCEEDED
        twice = run.engine.submit(request(2, name="twice"))
        with pytest.raises(RequestRefused) as refused:
            run.engine.submit(request(2, name="twice"))
        assert refused.value.refusal.reason is Reason.DUPLICATE_ID
        await read(twice)

    shared.do(check())


def test_probes_find_the_engine_that_has_most_and_orders_reach_all(shared: Shared) -> None:
    run, prompt = shared.run, request(150).prompt_token_ids

    async def num_cached() -> int:
        return (await run.engine.ask(PrefixQuery(prompt, SharingTerms()))).num_cached

    async def check() -> None:
        assert await num_cached() == 0
        await outputs_of(run, [request(150)])
        assert await num_cached() >= 144
        run.engine.order(ResetPrefixCache())
        async with asyncio.timeout(10):
            while await num_cached():
                pass

    shared.do(check())


@pytest.mark.parametrize("way", WAYS)
async def test_a_killed_engine_loses_nothing_and_keeps_its_counts(way: str) -> None:
    async with WAYS[way]() as run:
        alone = await outputs_of(run, [request(number, LONG) for number in range(6)])
        streams = [run.engine.submit(request(number, LONG, "again")) for number in range(6)]
        first = await begun(streams[0])
        kill(run, run.names[0])
        rest, *others = await read_all(streams)
        assert [first + rest, *others] == alone
        assert run.told.causes == [EndCause.KILLED]
        assert way == "replicas" or num_generated(run) >= 11 * LONG


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_that_none_follows_gives_its_requests_to_the_other(way: str) -> None:
    async with WAYS[way](max_restarts=0) as run:
        streams = [run.engine.submit(request(number, LONG)) for number in range(6)]
        first = await begun(streams[0])
        kill(run, run.names[0])
        rest, *others = await read_all(streams)
        assert all(len(each) == LONG for each in (first + rest, *others))
        assert run.told.causes == [EndCause.REPLICA_LOST]
        moved = [route for route in routes(run.told).values() if route == [*run.names]]
        assert len(moved) == run.told.num_resumed[0] > 0
        assert len(await outputs_of(run, [request(7)])) == 1
