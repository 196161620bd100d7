"""The engine in its own process, through the client: streams end once, whatever happens."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import uvloop

from quire.cache.kv_events import KVEventKind
from quire.cache.sharing import SharingTerms
from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
    SupervisionConfig,
    TracingConfig,
)
from quire.engine.messages import EngineOutput
from quire.engine.orders import PrefixQuery, ResetPrefixCache
from quire.engines.process.client import EnginePhase
from quire.engines.process.questions import MAX_QUESTIONS
from quire.engines.process.request_table import MAX_UNREAD_BYTES
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream
from quire.models.toy import toy_logits
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Finish
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engine.toy_starter import toy_starter

GREEDY = Sampling(temperature=0.0)
CONFIG = EngineConfig(
    ModelConfig(TOY_MODEL),
    memory=MemoryConfig(num_gpu_blocks_override=400),
    scheduling=SchedulingConfig(max_num_seqs=4, max_num_queued_reqs=2),
)


def request(name: str, max_tokens: int = 8) -> NewRequest:
    return NewRequest(name, (1, 2, 3, 4), GREEDY, Stopping(max_tokens=max_tokens))


async def collect(stream: TokenStream) -> tuple[list[int], Finish | None]:
    token_ids: list[int] = []
    finish = None
    async for delta in stream:
        token_ids += delta.token_ids
        finish = delta.finish
    return token_ids, finish


def supervisor(
    config: EngineConfig = CONFIG, outputs: list[EngineOutput] | None = None
) -> EngineSupervisor:
    """An engine that no other follows."""
    subscriber = RecordingSubscriber([] if outputs is None else outputs)
    return EngineSupervisor(config, subscriber, SupervisionConfig(0), toy_starter())


@asynccontextmanager
async def running(outputs: list[EngineOutput] | None = None) -> AsyncIterator[EngineSupervisor]:
    client = supervisor(outputs=outputs)
    await client.start()
    try:
        await ready(client)
        yield client
    finally:
        await client.close()


async def submitted(client: EngineSupervisor, request: NewRequest) -> TokenStream:
    stream = client.submit(request)
    await stream.accepted()
    return stream


async def ready(client: EngineSupervisor) -> None:
    async with asyncio.timeout(60):
        while client.phase is not EnginePhase.READY:
            assert client.phase is not EnginePhase.DOWN, client.down_reason
            await asyncio.sleep(0.01)


def pid_of(client: EngineSupervisor) -> int:
    pid = client.process_id
    assert pid is not None
    return pid


async def test_requests_side_by_side() -> None:
    async with running() as client:
        assert client.facts is not None
        streams = [await submitted(client, request(f"r{index}")) for index in range(4)]
        outcomes = await asyncio.gather(*(collect(stream) for stream in streams))
        first = int(toy_logits((1, 2, 3, 4), client.facts.vocab_size).argmax())
        assert {tuple(token_ids) for token_ids, _ in outcomes} == {tuple(outcomes[0][0])}
        assert outcomes[0][0][0] == first
        finish = outcomes[0][1]
        assert finish is not None and finish.reason is Reason.MAX_TOKENS
        assert client.num_unfinished == 0
        assert client.last_progress_age_s() == 0.0


async def test_a_refusal_reaches_its_caller_with_the_numbers() -> None:
    async with running() as client:
        with pytest.raises(RequestRefused, match="more than the context of") as caught:
            await submitted(client, request("a", max_tokens=10**6))
        assert caught.value.refusal.reason is Reason.CONTEXT_EXCEEDED
        assert client.num_unfinished == 0


async def test_the_bounded_queue_refuses_and_the_rest_is_served() -> None:
    async with running() as client:
        names = [f"r{index}" for index in range(12)]
        tasks = [submitted(client, request(name, max_tokens=200)) for name in names]
        taken = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [item for item in taken if isinstance(item, RequestRefused)]
        assert refused
        assert {item.refusal.reason for item in refused} == {Reason.QUEUE_FULL}
        streams = [item for item in taken if isinstance(item, TokenStream)]
        assert len(streams) >= 6
        for token_ids, finish in await asyncio.gather(*(collect(stream) for stream in streams)):
            assert finish is not None
            assert len(token_ids) == 200


async def test_a_stopped_engine_is_handed_no_more_than_it_would_take() -> None:
    async with running() as client:
        engine = psutil.Process(pid_of(client))
        engine.suspend()
        try:
            limits = CONFIG.scheduling
            most = limits.max_num_seqs + limits.max_num_queued_reqs
            tasks = [asyncio.create_task(submitted(client, request(f"r{i}"))) for i in range(most)]
            await asyncio.sleep(0)
            with pytest.raises(RequestRefused, match=f"not answered {most} requests") as caught:
                await submitted(client, request("one more"))
            assert caught.value.refusal.reason is Reason.QUEUE_FULL
        finally:
            engine.resume()
        for stream in await asyncio.gather(*tasks):
            assert len((await collect(stream))[0]) == 8


async def test_a_stopped_engine_is_handed_no_more_bytes_than_are_kept_for_it() -> None:
    async with running() as client:
        engine = psutil.Process(pid_of(client))
        engine.suspend()
        try:
            large = replace(request("large"), prompt_token_ids=(2**31,) * (MAX_UNREAD_BYTES // 4))
            tasks = [asyncio.create_task(submitted(client, large))]
            await asyncio.sleep(0)
            with pytest.raises(RequestRefused, match=f"{MAX_UNREAD_BYTES} bytes are kept"):
                await submitted(client, request("one more"))
        finally:
            engine.resume()
        with pytest.raises(RequestRefused):  # it is longer than the context
            await asyncio.gather(*tasks)


async def test_a_used_id_is_refused_and_the_first_goes_on() -> None:
    async with running() as client:
        stream, refused = await asyncio.gather(
            submitted(client, request("a")), submitted(client, request("a")), return_exceptions=True
        )
        assert isinstance(refused, RequestRefused) and "in use" in str(refused)
        assert isinstance(stream, TokenStream)
        assert len((await collect(stream))[0]) == 8


async def test_an_abort_frees_the_blocks_within_its_step() -> None:
    outputs: list[EngineOutput] = []
    async with running(outputs) as client:
        stream = await submitted(client, request("a", max_tokens=500))
        await anext(stream)
        assert outputs[-1].stats.num_blocks_active > 0
        client.abort("a")
        finish = (await collect(stream))[1]
        assert finish is not None and finish.reason is Reason.ABORTED
        (told,) = [
            output for output in outputs for delta in output.deltas if delta.finish is not None
        ]
        assert told.stats.num_blocks_active == 0, "the output that has the finish has them free"


async def test_a_killed_engine_ends_every_stream() -> None:
    async with running() as client:
        streams = [await submitted(client, request(f"r{i}", max_tokens=1500)) for i in range(4)]
        for stream in streams:
            await anext(stream)
        os.kill(pid_of(client), signal.SIGKILL)
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(
                *(collect(stream) for stream in streams), return_exceptions=True
            )
        assert all(isinstance(outcome, EngineDown) for outcome in outcomes)
        assert client.phase is EnginePhase.DOWN
        with pytest.raises(EngineDown):
            await submitted(client, request("later"))


def test_a_dead_engine_is_sent_messages_before_its_end_is_known() -> None:
    """The loop of the server, which unlike asyncio's own raises where a closed socket is written
    to."""

    async def submit_to_a_dead_engine() -> None:
        async with running() as client:
            pid = pid_of(client)
            os.kill(pid, signal.SIGKILL)
            while psutil.pid_exists(pid):
                time.sleep(0.001)  # noqa: ASYNC251
            streams = []
            for number in range(100):
                try:
                    streams.append(client.submit(request(str(number))))
                except (EngineDown, RequestRefused):
                    break
                client.abort(str(number // 2))
                await asyncio.sleep(0)
            assert streams
            ends = await asyncio.gather(*map(collect, streams), return_exceptions=True)
            aborted = [each for each in ends if not isinstance(each, BaseException)]
            assert {type(each) for each in ends if isinstance(each, BaseException)} == {EngineDown}
            assert {finish.reason for _, finish in aborted if finish} <= {Reason.ABORTED}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(submit_to_a_dead_engine())


async def test_a_stopped_engine_shows_by_its_age() -> None:
    async with running() as client:
        await anext(await submitted(client, request("a", max_tokens=1500)))
        pid = pid_of(client)
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(30):
            while client.last_progress_age_s() <= 0.2:
                await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGCONT)


async def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    client = supervisor(EngineConfig(ModelConfig(str(tmp_path / "nothing"))))
    await client.start()
    async with asyncio.timeout(60):
        while client.phase is not EnginePhase.DOWN:
            await asyncio.sleep(0.01)
    assert client.down_reason is not None and "nothing" in client.down_reason
    await client.close()


async def test_the_process_ends_when_its_client_closes() -> None:
    async with running() as client:
        pid = pid_of(client)
        await client.close()
    assert not psutil.pid_exists(pid)


async def test_files_beside_the_user_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    async with running() as client:
        assert client.phase is EnginePhase.READY


async def test_a_report_that_cannot_be_used_ends_every_stream() -> None:
    @dataclass
    class Refusing(RecordingSubscriber):
        def on_output(self, output: EngineOutput) -> None:
            raise KeyError("a defect of the listener")

    client = EngineSupervisor(CONFIG, Refusing(), SupervisionConfig(0))
    await client.start()
    await ready(client)
    async with asyncio.timeout(5):
        with pytest.raises(EngineDown, match="defect"):
            await submitted(client, request("a"))
    assert client.phase is EnginePhase.DOWN
    await client.close()


async def test_an_abort_is_heard_behind_a_long_line() -> None:
    config = replace(CONFIG, scheduling=replace(CONFIG.scheduling, max_num_queued_reqs=1000))
    client = supervisor(config)
    await client.start()
    await ready(client)
    try:
        stream = await submitted(client, request("a", max_tokens=1500))
        await anext(stream)
        long = tuple(range(500)) * 3
        waiting = [
            asyncio.create_task(
                submitted(client, NewRequest(f"r{index}", long, GREEDY, Stopping(max_tokens=1)))
            )
            for index in range(400)
        ]
        await asyncio.sleep(0)
        client.abort("a")
        async with asyncio.timeout(20):
            _, finish = await collect(stream)
            await asyncio.gather(*waiting)
        assert finish is not None and finish.reason is Reason.ABORTED
    finally:
        await client.close()


async def test_a_reset_makes_the_cache_forget_and_events_tell_it() -> None:
    outputs: list[EngineOutput] = []
    config = replace(CONFIG, tracing=TracingConfig(enable_kv_cache_events=True))
    client = supervisor(config, outputs)
    with pytest.raises(EngineDown):
        client.order(ResetPrefixCache())
    await client.start()
    await ready(client)
    try:
        prompt = NewRequest("a", tuple(range(1, 40)), GREEDY, Stopping(max_tokens=1))
        finishes = []
        for step in range(3):
            if step == 2:
                client.order(ResetPrefixCache())
            stream = await submitted(client, replace(prompt, id=str(step)))
            finishes.append((await collect(stream))[1])
        cached = [finish.num_cached_tokens for finish in finishes if finish is not None]
        assert cached == [0, 32, 0]
        assert outputs[-1].stats.num_resets == 1
        kinds = [event.kind for output in outputs for event in output.kv_events]
        assert kinds == [KVEventKind.STORED, KVEventKind.CLEARED, KVEventKind.STORED]
    finally:
        await client.close()


async def test_probes_tell_what_is_cached_and_end_with_the_engine() -> None:
    client = supervisor()
    prompt, sharing = tuple(range(1, 40)), SharingTerms(b"ann")
    with pytest.raises(EngineDown):
        await client.ask(PrefixQuery(prompt, sharing))
    await client.start()
    await ready(client)
    try:
        assert (await client.ask(PrefixQuery(prompt, sharing))).num_cached == 0
        new = NewRequest("a", prompt, GREEDY, Stopping(max_tokens=1), sharing)
        await collect(await submitted(client, new))
        told = await client.ask(PrefixQuery(prompt, sharing))
        assert (told.num_cached, told.num_on_device, told.miss) == (32, 32, None)
        assert (await client.ask(PrefixQuery(prompt, SharingTerms(b"bob")))).num_cached == 0
        for _ in range(2 * MAX_QUESTIONS):  # one that nobody waits for any more takes no place
            given_up = asyncio.create_task(client.ask(PrefixQuery(prompt, sharing)))
            await asyncio.sleep(0)
            given_up.cancel()
        assert (await client.ask(PrefixQuery(prompt, sharing))).num_cached == 32
        os.kill(pid_of(client), signal.SIGSTOP)
        probes = [
            asyncio.create_task(client.ask(PrefixQuery(prompt, sharing)))
            for _ in range(MAX_QUESTIONS + 1)
        ]
        await asyncio.sleep(0.1)
        os.kill(pid_of(client), signal.SIGKILL)
        ends = await asyncio.wait_for(asyncio.gather(*probes, return_exceptions=True), 20)
        assert [type(each) for each in ends] == [EngineDown] * MAX_QUESTIONS + [RequestRefused]
    finally:
        await client.close()


@pytest.mark.long  # it waits until patience ends; a stopped engine is ended in every run
async def test_an_engine_that_ends_as_patience_does_is_closed_in_silence() -> None:
    """It hangs, and is killed by someone while the loop is held up, just before it would be
    killed: whoever then kills it finds no process."""
    client = supervisor()
    await client.start()
    await ready(client)
    os.kill(pid_of(client), signal.SIGSTOP)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(4.9)
    os.kill(pid_of(client), signal.SIGKILL)
    time.sleep(0.3)  # noqa: ASYNC251
    await closing
    assert client.phase is EnginePhase.DOWN
