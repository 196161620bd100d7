"""Replicas on Ray beyond the properties of all engines that answer as one: a whole replica may be
lost."""

import asyncio
from dataclasses import replace

import pytest

from quire.engines.process.end_cause import EndCause
from tests.engines.several import (
    LONG,
    begun,
    kill,
    outputs_of,
    read,
    read_all,
    replicas,
    request,
    routes,
)


async def test_outputs_of_a_step_travel_together() -> None:
    async with replicas() as run:
        outputs = await outputs_of(run, [request(number, 200) for number in range(16)])
        assert sum(map(len, outputs)) == 3200
        assert run.replicas.num_items < 3200 / 3


async def test_a_lost_replica_and_a_killed_engine_lose_nothing() -> None:
    async with replicas() as run, asyncio.timeout(60):
        alone = await outputs_of(run, [request(number, LONG, "calm") for number in range(6)])
        streams = [run.engine.submit(request(number, LONG, "killed")) for number in range(6)]
        first = await begun(streams[0])
        lost = dict(run.replicas.calls)["killed-0"]
        await run.replicas.lose(lost)
        (last,) = run.replicas.replicas
        kill(run, last.name)
        rest, *others = await read_all(streams)
        assert [first + rest, *others] == alone
        assert sorted(run.told.causes) == [EndCause.KILLED, EndCause.REPLICA_LOST]
        assert routes(run.told)["killed-0"] == [lost, last.name]
        assert list(run.engine.stats_by_replica) == [last.name]


@pytest.mark.long  # a lost replica is in every run
async def test_replicas_without_requests_are_heard_and_those_that_are_gone_forgotten() -> None:
    async with replicas() as run, asyncio.timeout(60):
        await outputs_of(run, [request(number) for number in (1, 2)])
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
