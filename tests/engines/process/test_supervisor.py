"""An engine that ends is followed by one that goes on with every request."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import psutil
import pytest

from quire.cache.sharing import SharingTerms
from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
    SupervisionConfig,
)
from quire.engine.messages import EngineOutput
from quire.engine.orders import PrefixQuery, ResetPrefixCache
from quire.engines.process.client import EnginePhase
from quire.engines.process.end_cause import EndCause
from quire.engines.process.engine_starter import EngineStarter
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Finish
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engine.toy_starter import toy_starter

CONFIG = EngineConfig(
    ModelConfig(TOY_MODEL),
    memory=MemoryConfig(num_gpu_blocks_override=1000),
    scheduling=SchedulingConfig(max_num_seqs=4, max_num_queued_reqs=8),
)


NEVER = (1 << 20,)
"""Stop tokens that the toy model does not have."""


@dataclass
class Running:
    supervisor: EngineSupervisor
    told: RecordingSubscriber

    @property
    def pid(self) -> int:
        pid = self.supervisor.process_id
        assert pid is not None
        return pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    async def reaches(self, phase: EnginePhase) -> None:
        async with asyncio.timeout(60):
            while self.supervisor.phase is not phase:
                await asyncio.sleep(0.005)

    async def is_killed(self) -> None:
        """Kill the engine, and wait until that is noticed: another may be there already."""
        num_told = len(self.told.causes)
        self.kill()
        async with asyncio.timeout(60):
            while len(self.told.causes) == num_told:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    max_restarts: int = 20,
    config: EngineConfig = CONFIG,
    told: RecordingSubscriber | None = None,
    stuck_after_s: float = 120.0,
    is_soon_replaced: bool = True,
) -> AsyncIterator[Running]:
    told = told or RecordingSubscriber()
    supervision = SupervisionConfig(max_restarts, stuck_after_s)
    starter = toy_starter() if is_soon_replaced else EngineStarter(has_standby=False)
    supervisor = EngineSupervisor(config, told, supervision, starter)
    await supervisor.start()
    try:
        run = Running(supervisor, told)
        await run.reaches(EnginePhase.READY)
        yield run
    finally:
        await supervisor.close()


def request(name: str, max_tokens: int = 400, seed: int = 0) -> NewRequest:
    prompt = tuple(range(1, 30 + seed))
    return NewRequest(name, prompt, Sampling(seed=seed), Stopping(max_tokens=max_tokens))


async def collect(stream: TokenStream) -> tuple[list[int], Finish | None]:
    token_ids: list[int] = []
    finish = None
    async for delta in stream:
        token_ids += delta.token_ids
        finish = delta.finish
    return token_ids, finish


async def undisturbed(*requests: NewRequest, config: EngineConfig = CONFIG) -> list[list[int]]:
    async with running(config=config) as run:
        streams = [run.supervisor.submit(each) for each in requests]
        return [(await collect(stream))[0] for stream in streams]


async def test_outputs_are_those_of_an_engine_that_never_ends() -> None:
    requests = [request(f"r{seed}", seed=seed) for seed in range(8)]
    expected = await undisturbed(*requests)
    async with running() as run:
        pauses: list[str] = []
        streams = [run.supervisor.submit(each) for each in requests]
        for stream in streams:
            stream.on_pause = lambda name=stream.request_id: pauses.append(name)
        collecting = [asyncio.create_task(collect(stream)) for stream in streams]
        for _ in range(3):
            num_outputs = len(run.told.outputs)
            while len(run.told.outputs) < num_outputs + 20:
                await asyncio.sleep(0.001)
            await run.is_killed()
        found = await asyncio.gather(*collecting)
    assert [token_ids for token_ids, _ in found] == expected
    finishes = [finish for _, finish in found if finish is not None]
    assert {finish.num_output_tokens for finish in finishes} == {400}
    assert all(finish.reason is Reason.MAX_TOKENS for finish in finishes)
    assert run.told.causes == [EndCause.KILLED] * 3 and len(run.told.num_resumed) == 3
    assert len(pauses) >= 3


async def test_requests_that_come_meanwhile_wait_behind_those_that_go_on() -> None:
    async with running(is_soon_replaced=False) as run:
        first = run.supervisor.submit(request("first"))
        await anext(first)
        await run.is_killed()
        assert run.supervisor.last_progress_age_s() == 0.0
        later = [run.supervisor.submit(request(f"later{i}", max_tokens=8)) for i in range(3)]
        with pytest.raises(RequestRefused, match="in use"):
            run.supervisor.submit(request("first"))
        with pytest.raises(EngineDown, match="restarts|restarting"):
            await run.supervisor.ask(PrefixQuery((1, 2), SharingTerms()))
        run.supervisor.order(ResetPrefixCache())
        ends = await asyncio.gather(*map(collect, later))
        assert [len(token_ids) for token_ids, _ in ends] == [8] * 3
        assert len((await collect(first))[0]) == 399
        assert run.told.outputs[-1].stats.num_resets == 1


async def test_no_more_waits_for_an_engine_than_it_could_accept() -> None:
    async with running(is_soon_replaced=False) as run:
        await run.is_killed()
        waiting = [run.supervisor.submit(request(f"r{i}", max_tokens=1)) for i in range(12)]
        with pytest.raises(RequestRefused) as caught:
            run.supervisor.submit(request("one more"))
        assert caught.value.refusal.reason is Reason.QUEUE_FULL
        ends = await asyncio.gather(
            *(stream.accepted() for stream in waiting), return_exceptions=True
        )
        assert sum(end is None for end in ends) >= 8


async def test_aborts_end_at_once_without_an_engine_and_behind_one_that_ends() -> None:
    async with running(is_soon_replaced=False) as run:
        streams = [run.supervisor.submit(request(f"r{i}")) for i in range(3)]
        for stream in streams:
            await anext(stream)
        os.kill(run.pid, signal.SIGSTOP)
        run.supervisor.abort("r0")
        await run.is_killed()
        run.supervisor.abort("r1")
        run.supervisor.abort("nobody")
        for stream in streams[:2]:
            token_ids, finish = await asyncio.wait_for(collect(stream), 1)
            assert finish is not None and finish.reason is Reason.ABORTED
            assert finish.num_output_tokens == 1 + len(token_ids)
            assert finish.num_prompt_tokens == 29
            assert min(finish.queue_s, finish.prefill_s, finish.decode_s) >= 0
        assert [delta.request_id for delta in run.told.ended_here] == ["r0", "r1"]
        assert len((await collect(streams[2]))[0]) == 399


async def test_time_limits_pass_while_there_is_no_engine() -> None:
    async with running(is_soon_replaced=False) as run:
        # Nobody knows how many tokens it will have: it is not refused, however fast the steps are.
        stopping = Stopping(max_tokens=1500, stop_token_ids=NEVER)
        timed = replace(request("timed"), stopping=stopping, time_limit_s=0.15)
        endless = run.supervisor.submit(request("endless"))
        await anext(endless)
        accepted = run.supervisor.submit(timed)
        await anext(accepted)
        await run.is_killed()
        waiting = run.supervisor.submit(replace(timed, id="waits", time_limit_s=0.05))
        with pytest.raises(RequestRefused) as caught:
            await waiting.accepted()
        assert caught.value.refusal.reason is Reason.DEADLINE_HOPELESS
        finish = (await collect(accepted))[1]
        assert finish is not None and finish.reason is Reason.DEADLINE_EXCEEDED
        assert run.supervisor.phase is EnginePhase.RESTARTING
        assert len((await collect(endless))[0]) == 399


async def test_a_stream_of_a_refused_request_ends() -> None:
    async with running() as run:
        hopeless = replace(request("hopeless"), time_limit_s=-1.0)
        with pytest.raises(RequestRefused) as caught:
            await collect(run.supervisor.submit(hopeless))
        assert caught.value.refusal.reason is Reason.DEADLINE_HOPELESS


async def test_an_engine_that_ends_too_often_is_given_up() -> None:
    async with running(max_restarts=1) as run:
        stream = run.supervisor.submit(request("a", max_tokens=1500))
        await anext(stream)
        await run.is_killed()
        await run.reaches(EnginePhase.READY)
        run.kill()
        with pytest.raises(EngineDown, match="killed.*after 1 restarts in ten minutes"):
            await collect(stream)
        assert run.supervisor.phase is EnginePhase.DOWN
        with pytest.raises(EngineDown, match="after 1 restarts"):
            run.supervisor.submit(request("b"))


@pytest.mark.parametrize("wait_s", [0.0, pytest.param(0.1, marks=pytest.mark.long)])
async def test_closing_while_it_restarts_leaves_no_process(wait_s: float) -> None:
    before = psutil.Process().children()
    async with running(is_soon_replaced=False) as run:
        stream = run.supervisor.submit(request("a"))
        await anext(stream)
        await run.is_killed()
        await asyncio.sleep(wait_s)
        began = time.monotonic()
        await run.supervisor.close()
        assert time.monotonic() - began < 10
        with pytest.raises(EngineDown):
            await collect(stream)
    assert psutil.Process().children() == before


async def test_idle_engines_that_end_again_are_started_after_a_while() -> None:
    async with running() as run:
        for _ in range(2):
            await run.reaches(EnginePhase.READY)
            await run.is_killed()
        began = time.monotonic()
        await run.reaches(EnginePhase.READY)
        assert time.monotonic() - began > 0.5
        assert len((await collect(run.supervisor.submit(request("a", max_tokens=3))))[0]) == 3


async def test_an_engine_that_is_stopped_for_too_long_is_replaced() -> None:
    async with running(stuck_after_s=0.6) as run:
        stream = run.supervisor.submit(request("a"))
        await anext(stream)
        os.kill(run.pid, signal.SIGSTOP)
        assert len((await asyncio.wait_for(collect(stream), 30))[0]) == 399
        assert run.told.causes == [EndCause.STOPPED]


class Crashing(RecordingSubscriber):
    """Ends the engine by a fault whenever one of `bad` has got `after` tokens from it."""

    def __init__(self, bad: dict[str, int]) -> None:
        super().__init__()
        self.bad = bad
        self.num_tokens: dict[str, int] = {}
        self.run: Running | None = None

    def on_output(self, output: EngineOutput) -> None:
        super().on_output(output)
        for delta in output.deltas:
            num = self.num_tokens.get(delta.request_id, 0) + len(delta.token_ids)
            self.num_tokens[delta.request_id] = num
            if delta.finish is None and num >= self.bad.get(delta.request_id, 10**9):
                assert self.run is not None
                os.kill(self.run.pid, signal.SIGABRT)


async def test_a_request_that_crashes_engines_is_ended_and_the_others_go_on() -> None:
    """A kill from here comes after its token, and after later ones where the machine is busy: how
    many crashes it takes where they come within a step is told in test_trials.py."""
    config = replace(CONFIG, scheduling=replace(CONFIG.scheduling, max_num_seqs=21))
    requests = [request(f"r{seed}", seed=seed) for seed in range(21)]
    expected = await undisturbed(*requests, config=config)
    told = Crashing({"r13": 12})
    async with running(100, config, told) as run:
        told.run = run
        streams = [run.supervisor.submit(each) for each in requests]
        found = await asyncio.gather(*map(collect, streams))
        with pytest.raises(RequestRefused) as caught:
            run.supervisor.submit(replace(requests[13], id="again"))
        assert caught.value.refusal.reason is Reason.QUARANTINED
        later = run.supervisor.submit(request("later", max_tokens=3))
        assert len((await collect(later))[0]) == 3
    ends = [finish.reason for _, finish in found if finish is not None]
    assert ends.pop(13) is Reason.QUARANTINED and set(ends) == {Reason.MAX_TOKENS}
    assert len(found[13][0]) >= 12
    assert told.num_quarantined == 1
    assert set(told.causes) == {EndCause.CRASHED}
    for index, token_ids in enumerate(expected):
        assert index == 13 or found[index][0] == token_ids
    assert [delta.request_id for delta in told.ended_here] == ["r13"]


async def test_requests_that_come_or_end_during_a_trial_are_held_or_let_go() -> None:
    told = Crashing({"r0": 12})
    async with running(told=told) as run:
        told.run = run
        streams = [run.supervisor.submit(request(f"r{i}", max_tokens=1500)) for i in range(4)]
        async with asyncio.timeout(30):
            while len(told.causes) < 2:
                await asyncio.sleep(0.005)
        later = run.supervisor.submit(request("later", max_tokens=5))
        run.supervisor.abort("r3")
        ends = await asyncio.wait_for(asyncio.gather(*map(collect, [*streams, later])), 60)
        reasons = [finish.reason for _, finish in ends if finish is not None]
    assert reasons == [
        Reason.QUARANTINED,
        *[Reason.MAX_TOKENS] * 2,
        Reason.ABORTED,
        Reason.MAX_TOKENS,
    ]


async def test_time_limits_pass_while_the_engine_does_not_answer() -> None:
    async with running() as run:
        timed = replace(request("timed", max_tokens=1500), time_limit_s=0.5)
        stream = run.supervisor.submit(timed)
        await anext(stream)
        os.kill(run.pid, signal.SIGSTOP)
        waiting = run.supervisor.submit(replace(timed, id="waits"))
        try:
            finish = (await asyncio.wait_for(collect(stream), 5))[1]
            assert finish is not None and finish.reason is Reason.DEADLINE_EXCEEDED
            with pytest.raises(RequestRefused, match="time limit"):
                await asyncio.wait_for(waiting.accepted(), 5)
        finally:
            os.kill(run.pid, signal.SIGCONT)
        assert len((await collect(run.supervisor.submit(request("a", max_tokens=3))))[0]) == 3
        assert run.told.causes == []
