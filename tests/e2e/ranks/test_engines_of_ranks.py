"""Several engines of which each divides its model: `--data-parallel-size` with
`--tensor-parallel-size`."""

import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.many_streams import NUM_STREAMS, together_and_alone
from tests.e2e.server_process import (
    REPLICAS,
    ServerProcess,
    engines_of,
    eventually,
    server_process,
)

pytestmark = [
    pytest.mark.long,  # ranks and engines are each in every run
    pytest.mark.skipif(REPLICAS is not None, reason="replicas have a model whole"),
]

SIZES = ("--data-parallel-size", "2", "--tensor-parallel-size", "2", "--num-threads", "1")
RANK = "quire-rank-1"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = (*SIZES, "--dtype", "float32", "--max-num-seqs", str(NUM_STREAMS))
    with server_process(*flags) as running:
        yield running


def ranks_of(engine: psutil.Process) -> list[psutil.Process]:
    return [each for each in engine.children() if each.name() == RANK]


def test_each_engine_has_ranks_and_both_work(server: ServerProcess) -> None:
    engines = engines_of(server.process.pid)
    assert [len(ranks_of(engine)) for engine in engines] == [1, 1]
    together, alone = together_and_alone(server)
    assert together == alone
    assert server.metric("quire:engine_ranks") == 2
    for number in (0, 1):
        assert server.metric(f'quire:generation_tokens_total{{engine="{number}"') > 0


def test_a_lost_rank_ends_its_engine_alone(server: ServerProcess) -> None:
    lost, other = engines_of(server.process.pid)
    ranks_of(lost)[0].send_signal(signal.SIGKILL)
    assert eventually(lambda: not lost.is_running(), 30)
    assert eventually(lambda: len(engines_of(server.process.pid)) == 2, 60)
    assert other in engines_of(server.process.pid)
    together, alone = together_and_alone(server)
    assert together == alone
