"""Engines that are forked by a process that stands by."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import msgspec
import psutil
import pytest

from quire.engine.channel import Channel
from quire.engine.config import TOY_MODEL, EngineConfig, MemoryConfig, ModelConfig
from quire.engine.messages import EngineFailure, EngineOutput, FromEngine, LoadingProgress, Ready
from quire.engines.process import engine_starter
from quire.engines.process.engine_starter import EngineStarter, model_type_of
from quire.engines.process.launch import LaunchedEngine
from quire.engines.process.standby import Standby

CONFIG = EngineConfig(
    ModelConfig(str(files("quire.models") / "bundled"), num_threads=1),
    memory=MemoryConfig(num_gpu_blocks_override=100),
)
TOY = EngineConfig(ModelConfig(TOY_MODEL), memory=MemoryConfig(num_gpu_blocks_override=100))
NO_MODEL = EngineConfig(ModelConfig("/no-such-model"))
LONG_AFTER_S = 1e9
FORK_S = 1.0
"""Seconds that a stopped process is waited for, fewer than in a server."""


@pytest.fixture
def starter() -> Iterator[EngineStarter]:
    made = EngineStarter(has_standby=True)
    yield made
    made.close()


def end(launched: LaunchedEngine) -> int:
    launched.close()
    return launched.process.wait(30)


def messages_of(launched: LaunchedEngine) -> Iterator[FromEngine]:
    channel = Channel(launched.socket)
    decoder = msgspec.msgpack.Decoder[FromEngine](
        LoadingProgress | Ready | EngineFailure | EngineOutput
    )
    while True:
        yield from map(decoder.decode, channel.receive(wait=True))


def wait_ready(launched: LaunchedEngine) -> int:
    """Return the id of the process of an engine that has become ready."""
    told = next(each for each in messages_of(launched) if isinstance(each, Ready | EngineFailure))
    assert isinstance(told, Ready) and told.facts.model_type == "llama"
    assert launched.process.pid is not None
    return launched.process.pid


def check_start(starter: EngineStarter) -> None:
    """Start an engine, which needs no long: it finds no model."""
    launched = starter.launch(NO_MODEL)
    told = next(each for each in messages_of(launched) if isinstance(each, Ready | EngineFailure))
    assert isinstance(told, EngineFailure) and "no-such-model" in told.message
    assert launched.process.wait(30) == 1
    launched.close()


def lose(starter: EngineStarter) -> int:
    """Kill the process that stands by; return its id."""
    pid = starter.standby_id
    assert pid is not None
    psutil.Process(pid).kill()
    deadline_s = time.monotonic() + 10
    while starter.standby_id is not None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return pid


def test_one_process_forks_all_engines_and_tells_how_they_ended(starter: EngineStarter) -> None:
    first, second = engines = [starter.launch(CONFIG) for _ in range(2)]
    pids = [wait_ready(each) for each in engines]
    processes = [psutil.Process(pid) for pid in pids]
    assert {each.ppid() for each in processes} == {starter.standby_id}
    assert {each.name() for each in processes} == {"quire-engine"}
    assert all(os.getsid(pid) == pid for pid in pids)
    for pid in pids:
        fds = {int(each) for each in os.listdir(f"/proc/{pid}/fd")} - {0, 1, 2}
        kinds = [os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in fds]
        assert kinds.count("socket") == 1
        assert not {"pipe", "anon_inode"} & set(kinds), "those of its maker"
    assert first.process.poll() is None and second.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(0.05)
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(30) == -signal.SIGTERM
    first.close()
    first.process.send_signal(signal.SIGTERM)
    first.process.kill()
    assert second.process.poll() is None, "each has its own end"
    assert end(second) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids), "none is left as a zombie"


def test_a_toy_is_forked_and_nothing_of_models_is_imported_for_it(starter: EngineStarter) -> None:
    toy = starter.launch(TOY)
    told = next(each for each in messages_of(toy) if isinstance(each, Ready | EngineFailure))
    assert isinstance(told, Ready) and toy.process.pid is not None
    assert psutil.Process(toy.process.pid).ppid() == starter.standby_id
    maps = Path(f"/proc/{starter.standby_id}/maps")
    assert "safetensors" not in maps.read_text()
    model = starter.launch(CONFIG)
    assert psutil.Process(wait_ready(model)).ppid() == starter.standby_id
    assert "safetensors" in maps.read_text()
    assert (end(toy), end(model)) == (0, 0)


def test_a_process_that_is_lost_or_stopped_is_replaced(
    starter: EngineStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not starter.must_renew(LONG_AFTER_S), "none was needed yet"
    starter.renew()
    assert starter.standby_id is None
    engine = starter.launch(CONFIG)
    wait_ready(engine)
    starter.prepare("llama")
    assert not starter.must_renew(LONG_AFTER_S)
    lost = lose(starter)
    assert engine.process.poll() is None, "its engine goes on"
    starter.prepare("llama")
    assert starter.must_renew(LONG_AFTER_S)
    assert not starter.must_renew(time.monotonic()), "it was started a moment ago"
    starter.renew()
    renewed = starter.standby_id
    assert renewed not in (None, lost)
    starter.renew()
    assert starter.standby_id == renewed, "one is enough"
    engine.process.kill()
    assert engine.process.wait(30) == -signal.SIGKILL, "as its maker ended, which cannot tell"
    engine.close()
    check_start(starter)
    assert starter.standby_id == renewed
    assert renewed is not None
    psutil.Process(renewed).suspend()
    monkeypatch.setattr(engine_starter, "FORK_S", FORK_S)
    began_s = time.monotonic()
    check_start(starter)
    assert time.monotonic() - began_s >= FORK_S
    assert starter.standby_id is None and not psutil.pid_exists(renewed)


def test_an_engine_launched_ahead_is_the_one_that_is_launched(starter: EngineStarter) -> None:
    other = replace(TOY, memory=MemoryConfig(num_gpu_blocks_override=200))
    for config in (TOY, other):
        starter.launch_ahead(config)
    engines = [starter.launch(config) for config in (other, TOY, TOY)]
    for engine, num_blocks in zip(engines, (200, 100, 100), strict=True):
        ready = next(each for each in messages_of(engine) if isinstance(each, Ready))
        assert ready.facts.num_blocks == num_blocks
    assert len({engine.process.pid for engine in engines}) == 3
    assert [end(engine) for engine in engines] == [0, 0, 0]


def test_an_engine_that_is_not_yet_forked_can_be_given_up(starter: EngineStarter) -> None:
    first, second = (starter.launch(CONFIG) for _ in range(2))
    assert first.process.pid is None and first.process.poll() is None
    first.close()
    first.process.kill()
    assert first.process.wait(1) == -signal.SIGKILL
    lose(starter)
    assert second.process.wait(30) == -signal.SIGKILL, "as the one that was to fork it"
    second.close()


@pytest.mark.long  # tests/e2e/restarts/test_quarantine.py restarts such code in every run
def test_code_of_checkpoints_is_forked_where_all_of_torch_is_imported(
    starter: EngineStarter,
) -> None:
    config = replace(CONFIG, model=replace(CONFIG.model, trust_remote_code=True))
    alone = starter.launch(config)
    assert alone.process.pid is not None and starter.standby_id is None
    end(alone)
    whole = EngineStarter(has_standby=True, runs_own_code=True)
    launched = whole.launch(config)
    assert wait_ready(launched) == launched.process.pid
    assert whole.standby_id is not None
    standby = psutil.Process(whole.standby_id)
    assert standby.num_threads() == 1, "a fork loses all others"
    assert psutil.Process(launched.process.pid).ppid() == standby.pid
    end(launched)
    whole.close()


def test_none_stands_by_where_none_is_to_or_all_is_over() -> None:
    without = EngineStarter(has_standby=False)
    launched = without.launch(TOY)
    without.prepare("llama")
    assert without.standby_id is None and end(launched) == 0
    closed = EngineStarter(has_standby=True)
    closed.launch_ahead(CONFIG)
    pid = closed.standby_id
    assert pid is not None
    closed.close()
    assert not psutil.pid_exists(pid)
    launched = closed.launch(TOY)
    assert closed.standby_id is None and end(launched) == 0


def test_one_whose_server_is_gone_ends() -> None:
    code = "from quire.engines.process.standby import Standby; print(Standby(is_lean=True).pid)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_is_closed_forks_nothing() -> None:
    standby = Standby(is_lean=True)
    assert standby.is_running
    standby.close()
    assert not standby.is_running and not standby.has_forked
    with pytest.raises(OSError, match="Bad file descriptor"):
        standby.fork("llama")
    with pytest.raises(OSError, match="Bad file descriptor"):
        standby.prepare("llama")


def test_the_type_of_a_model_is_read_where_it_is_at_hand(tmp_path: Path) -> None:
    assert model_type_of(CONFIG.model) == "llama"
    assert model_type_of(ModelConfig("someone/on-the-hub")) == ""
    assert model_type_of(TOY.model) == TOY_MODEL
    for text in ("", "[]", "{}", '{"model_type": 3}'):
        (tmp_path / "config.json").write_text(text)
        assert model_type_of(ModelConfig(str(tmp_path))) == ""
    shutil.copy(Path(CONFIG.model.model) / "config.json", tmp_path)
    assert model_type_of(ModelConfig(str(tmp_path))) == "llama"
