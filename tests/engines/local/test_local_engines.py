"""Engines on one machine beyond the properties of all engines that answer as one: requests share
both, and an engine that none followed is started again."""

import asyncio
from dataclasses import replace

import pytest

from quire.engine.orders import Unpin
from quire.engines.local import local_engines as retries
from quire.engines.process.client import EnginePhase
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engines.several import (
    begun,
    config_of,
    kill,
    local_engines,
    outputs_of,
    read,
    read_all,
    request,
    routes,
)


def ends(told: RecordingSubscriber) -> dict[str, str]:
    """The requests that have ended, in their order, each with its first engine."""
    return {name: route[0] for name, route in routes(told).items()}


async def test_tenants_have_their_shares_of_both_engines() -> None:
    """The second tenant comes behind the first, which has filled both.

    Shares are compared as long as both engines have requests of both: then one that gets less of
    the machine than the other changes nothing.
    """
    async with local_engines(config=config_of(PolicyName.FAIR, max_num_seqs=2)) as run:
        crowd = [
            replace(request(number, 50, tenant), tenant=tenant, weight=weight)
            for tenant, weight in (("a", 1.0), ("b", 2.0))
            for number in range(30)
        ]
        await outputs_of(run, crowd)
        order, in_flight = ends(run.told), 4
        last = {engine: at for at, (name, engine) in enumerate(order.items()) if name[0] == "b"}
        assert last.keys() == {"0", "1"}
        served = [name[0] for name in list(order)[: min(last.values()) + 1]]
        assert abs(served.count("b") - 2 * served.count("a")) <= 3 * in_flight


async def test_urgent_requests_pass_the_others_in_both_engines() -> None:
    async with local_engines(config=config_of(PolicyName.PRIORITY, max_num_seqs=2)) as run:
        crowd = [replace(request(number, 50, "low"), priority=5) for number in range(40)]
        streams = [run.engine.submit(each) for each in crowd]
        await begun(streams[0])
        urgent = [replace(request(number, 50, "urgent"), priority=0) for number in range(4)]
        streams += [run.engine.submit(each) for each in urgent]
        num_before = len(ends(run.told))
        await read_all(streams[1:])
        after = list(ends(run.told).items())[num_before:]
        num_running = 4
        for engine in run.names:
            order = "".join(name[0] for name, its_engine in after if its_engine == engine)
            assert order[: order.rfind("u") + 1].count("l") <= 2 * num_running


async def test_a_prompt_is_pinned_in_all_engines_and_unpinned_likewise() -> None:
    async with local_engines() as run:
        new = replace(request(150, 0), pins_prompt=True)
        _, finish = await read(run.engine.submit(new))
        assert Reason.PINNED in [event.reason for event in finish.timeline]

        async def holds(num_blocks: int) -> None:
            async with asyncio.timeout(10):
                while True:
                    by_engine = run.engine.stats_by_replica.values()
                    if [each.num_blocks_pinned for each in by_engine] == [num_blocks] * 2:
                        return
                    await asyncio.sleep(0.01)

        await holds(len(new.prompt_token_ids) // 16)
        run.engine.order(Unpin(new.id))
        await outputs_of(run, [request(number) for number in range(4)])
        await holds(0)


async def test_an_engine_that_none_followed_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "FIRST_RETRY_S", 0.1)
    async with local_engines(max_restarts=0) as run:
        kill(run, "0")
        await run.reaches(EnginePhase.DOWN, number=0)
        assert run.engine.phase is EnginePhase.READY
        await run.reaches(EnginePhase.READY, number=0)
        await outputs_of(run, [request(number) for number in range(8)])
        assert set(ends(run.told).values()) == {"0", "1"}


async def test_without_any_engine_there_is_none() -> None:
    async with local_engines(max_restarts=0) as run:
        for name in run.names:
            kill(run, name)
        await run.reaches(EnginePhase.DOWN)
