"""A server whose model is divided between two ranks answers as one with one rank does, also where
ranks are killed in the middle of it."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.e2e.restarts.test_restarts import BODIES, FLAGS, TOKENS, Stream, has_made, whole
from tests.e2e.server_process import REPLICAS, ServerProcess, eventually, server_process
from tests.long import long_but_for

pytestmark = pytest.mark.skipif(REPLICAS is not None, reason="replicas have a model whole")

RANKS = ("--tensor-parallel-size", "2")
RESTARTS = "quire:engine_restarts_total"
STUCK_AFTER_S = 4
GONE_S = 10.0


@pytest.fixture(scope="module")
def expected() -> list[list[tuple[str, object]]]:
    """The answers of a server with one rank."""
    with server_process(*FLAGS) as server:
        return [whole(server, path, body) for path, body in BODIES]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    stuck = ("--stuck-after", str(STUCK_AFTER_S))
    with server_process(*FLAGS, *RANKS, *stuck) as running:
        yield running


def follower(server: ServerProcess) -> psutil.Process:
    """The process of rank 1."""
    (found,) = [
        each for each in server.engine_process().children() if each.name() == "quire-rank-1"
    ]
    return found


def kill_rank_0(server: ServerProcess) -> None:
    server.engine_process().kill()


def kill_rank_1(server: ServerProcess) -> None:
    follower(server).kill()


def stop_rank_1(server: ServerProcess) -> None:
    os.kill(follower(server).pid, signal.SIGSTOP)


HARMS = [(kill_rank_1, "rank_lost"), (kill_rank_0, "killed"), (stop_rank_1, "stuck")]
"""The first in every run: engines that are killed or stopped have tests of their own."""


@long_but_for([HARMS[0]], "harm, cause", HARMS)
def test_streams_go_on_when_a_rank_is_lost(
    harm: Callable[[ServerProcess], None],
    cause: str,
    server: ServerProcess,
    expected: list[list[tuple[str, object]]],
) -> None:
    ranks = [server.engine_process(), follower(server)]
    of_cause = f'{RESTARTS}{{cause="{cause}"'
    num_before, num_resumed = server.metrics(of_cause, "quire:requests_resumed_total")
    with ThreadPoolExecutor(len(BODIES)) as pool:
        enough = server.metric(TOKENS) + 150
        answers = [pool.submit(whole, server, path, body) for path, body in BODIES]
        streams = [Stream(server, path, body) for path, body in BODIES]
        assert eventually(lambda: has_made(server, enough), 60)
        harm(server)
        assert [stream.choices() for stream in streams] == expected
        assert [answer.result() for answer in answers] == expected
    assert server.metric(of_cause) == num_before + 1
    assert server.metric("quire:requests_resumed_total") > num_resumed
    assert eventually(lambda: not any(map(is_there, ranks)), GONE_S)


@pytest.mark.long  # one at work is in every run
def test_an_idle_engine_that_loses_a_rank_is_replaced_at_once(server: ServerProcess) -> None:
    server.wait_ready()
    kill_rank_1(server)
    assert eventually(lambda: server.client.get("/readyz").status_code != 200, 10)
    server.wait_ready()
    assert "rank 1 of 2: the process was ended by SIGKILL (rank_lost" in server.log()
    path, body = BODIES[0]
    assert whole(server, path, body)


def is_there(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
