"""Engine processes that stand by."""

import os
import time
from collections.abc import Iterator
from importlib.resources import files

import msgspec
import psutil
import pytest

from quire.engine.channel import Channel
from quire.engine.config import TOY_MODEL, EngineConfig, MemoryConfig, ModelConfig
from quire.engine.launch import LaunchedEngine, spawn
from quire.engine.messages import EngineOutput, Failed, FromEngine, Loading, Ready
from quire.engine.supervision.engine_starter import EngineStarter

CONFIG = EngineConfig(
    ModelConfig(str(files("quire.models") / "bundled"), num_threads=1),
    memory=MemoryConfig(num_gpu_blocks_override=100),
)


@pytest.fixture
def starter() -> Iterator[EngineStarter]:
    made = EngineStarter(has_standby=True)
    yield made
    made.close()


def end(launched: LaunchedEngine) -> None:
    launched.close()
    launched.process.wait(30)


def messages_of(launched: LaunchedEngine) -> Iterator[FromEngine]:
    channel = Channel(launched.socket)
    decoder = msgspec.msgpack.Decoder[FromEngine](Loading | Ready | Failed | EngineOutput)
    while True:
        yield from map(decoder.decode, channel.receive(wait=True))


def test_the_process_that_stands_by_becomes_the_engine(starter: EngineStarter) -> None:
    starter.want("llama", 0.0, num_ends=0)
    starter.prepare()
    pid = starter.standby_id
    assert pid is not None
    starter.want("llama", 0.0, num_ends=0)
    starter.prepare()
    assert starter.standby_id == pid, "one is enough"
    launched = starter.launch(CONFIG)
    try:
        assert launched.process.pid == pid and starter.standby_id is None
        ready = next(each for each in messages_of(launched) if isinstance(each, Ready))
        assert ready.facts.model_type == "llama"
        policies = {os.sched_getscheduler(int(each)) for each in os.listdir(f"/proc/{pid}/task")}
        assert policies == {os.SCHED_OTHER}
    finally:
        end(launched)


def test_imports_go_on_in_idle_time_alone(starter: EngineStarter) -> None:
    starter.want("llama", 0.0, num_ends=0)
    starter.prepare()
    pid = starter.standby_id
    assert pid is not None
    deadline = time.monotonic() + 60
    while not any(
        os.sched_getscheduler(int(each)) == os.SCHED_IDLE
        for each in os.listdir(f"/proc/{pid}/task")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_has_ended_while_it_stood_by_is_not_used(starter: EngineStarter) -> None:
    starter.want("no-such-type", 0.0, num_ends=0)
    starter.prepare()
    pid = starter.standby_id
    assert pid is not None
    process = psutil.Process(pid)
    process.kill()
    deadline = time.monotonic() + 10
    while starter.standby_id is not None:
        assert time.monotonic() < deadline
    launched = starter.launch(CONFIG)
    try:
        assert launched.process.pid != pid
        assert isinstance(next(messages_of(launched)), Loading)
    finally:
        end(launched)
    starter.want("llama", 0.0, num_ends=0)
    starter.prepare()
    assert starter.standby_id not in (None, pid)


def test_code_of_checkpoints_gets_a_process_of_its_own(starter: EngineStarter) -> None:
    starter.want("llama", 0.0, num_ends=0)
    starter.prepare()
    pid = starter.standby_id
    launched = starter.launch(EngineConfig(ModelConfig(TOY_MODEL, trust_remote_code=True)))
    try:
        assert launched.process.pid != pid and starter.standby_id == pid
    finally:
        end(launched)


def test_none_stands_by_where_none_is_wanted_or_all_is_over() -> None:
    without = EngineStarter(has_standby=False)
    without.want("llama", 0.0, num_ends=0)
    without.prepare()
    assert without.standby_id is None
    closed = EngineStarter(has_standby=True)
    closed.want("llama", 0.0, num_ends=0)
    closed.prepare()
    pid = closed.standby_id
    assert pid is not None
    closed.close()
    assert not psutil.pid_exists(pid)
    closed.want("llama", 0.0, num_ends=0)
    closed.prepare()
    assert closed.standby_id is None


def test_one_whose_server_is_gone_ends() -> None:
    launched = spawn(standby_for="llama")
    launched.close()
    assert launched.process.wait(30) == 0


def test_a_process_stands_by_once_nothing_runs_or_after_a_while(starter: EngineStarter) -> None:
    starter.want("llama", 100.0, num_ends=0)
    assert not starter.is_due(100.5, is_busy=False)
    assert not starter.is_due(100.9, is_busy=True)
    assert not starter.is_due(101.8, is_busy=False)
    assert starter.is_due(101.9 + 0.1, is_busy=False)
    assert not starter.is_due(159.0, is_busy=True)
    assert starter.is_due(160.0, is_busy=True)


def test_a_process_stands_by_at_once_where_engines_have_ended(starter: EngineStarter) -> None:
    assert not starter.is_due(100.0, is_busy=False)
    starter.want("llama", 100.0, num_ends=1)
    assert starter.is_due(100.0, is_busy=True)
