"""Rank 0 hears of a follower that fails or is lost, and none outlives it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from queue import SimpleQueue

import psutil
import pytest

from quire.engine.config import EngineConfig, ModelConfig
from quire.engine.failure_kind import FailureKind, RanksFailed
from quire.engine.messages import EngineFailure
from quire.engine.ranks.follower import follow
from quire.engine.ranks.leader import Leader
from quire.engine.ranks.messages import LoadModel, MeasureMemory, RankLoaded
from quire.engine.ranks.processes import start_ranks

WITHIN_S = 60.0
FORKS = """
import os, sys, time
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from quire.engine.ranks.processes import start_ranks

def follow(sock, rank):
    time.sleep(600)

started = start_ranks(3, follow)
print(os.getpid(), len(started), flush=True)
time.sleep(600)
"""


class World:
    """A leader of one follower, and what it was told of its loss. The follower is a fork where this
    process has no threads, and else a process that was started anew."""

    def __init__(self) -> None:
        self.lost: SimpleQueue[EngineFailure] = SimpleQueue()
        before = set(psutil.Process().children())
        self.leader = Leader(start_ranks(2, follow), self.lost.put)
        (self.process,) = set(psutil.Process().children()) - before


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.leader.close()
    assert not made.process.is_running()


def test_a_killed_follower_is_named(world: World) -> None:
    world.process.kill()
    failed = world.lost.get(timeout=WITHIN_S)
    assert failed == EngineFailure(
        "rank 1 of 2: the process was ended by SIGKILL", FailureKind.RANK_KILLED
    )
    with pytest.raises(RanksFailed, match="rank 1 of 2"):
        world.leader.answers(RankLoaded)
    with pytest.raises(RanksFailed, match="rank 1 of 2"), world.leader.together():
        raise ValueError("a collective fails")


def test_what_keeps_a_follower_from_loading_is_told(world: World) -> None:
    config = EngineConfig(ModelConfig("/no/such", device="cuda:99", tensor_parallel_size=2))
    world.leader.tell(LoadModel(config, 0))
    failed = world.lost.get(timeout=WITHIN_S)
    assert failed.message.startswith("rank 1 of 2: --device is cuda:99")
    assert failed.kind is FailureKind.START


@pytest.mark.long  # in every run another error of a follower is told
def test_an_error_of_a_call_ends_the_follower(world: World) -> None:
    world.leader.tell(MeasureMemory())
    failed = world.lost.get(timeout=WITHIN_S)
    assert failed.message.startswith("rank 1 of 2: AssertionError")


def test_an_error_of_rank_0_alone_is_its_own(world: World) -> None:
    with pytest.raises(RanksFailed, match="rank 0 of 2: MemoryError"), world.leader.together():
        raise MemoryError


def test_a_follower_that_does_not_listen_is_ended(world: World) -> None:
    os.kill(world.process.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    world.leader.close()
    assert time.monotonic() - began_s < WITHIN_S
    assert world.lost.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with a parent")
def test_forks_die_with_rank_0_however_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(process.pid).encode(), b"2"]
        forks = psutil.Process(process.pid).children()
        assert len(forks) == 2
        process.kill()
        assert psutil.wait_procs(forks, WITHIN_S)[1] == []
