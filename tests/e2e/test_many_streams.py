"""Many at once: each says what it says alone, and one that is closed gives its blocks back."""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

NUM_STREAMS = 64
NUM_READINGS = 8
OPENINGS = ("The king", "My lord,", "O", "What news from the north? I heard")
ACTIVE = 'quire:kv_blocks{state="active"}'
RUNNING = "quire:num_requests_running"
STEPS = "quire:iteration_tokens_total_count"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--dtype", "float32", "--max-num-seqs", str(NUM_STREAMS)) as running:
        yield running


@pytest.fixture
def slow_server() -> Iterator[ServerProcess]:
    """Its steps take longer than reading its metrics."""
    options = ("--linear-backend", "torch", "--attention-backend", "eager")
    with server_process(
        "--dtype", "float32", "--max-num-seqs", str(NUM_STREAMS), *options
    ) as running:
        yield running


def body_of(index: int) -> dict[str, object]:
    opening = OPENINGS[index % len(OPENINGS)]
    return {
        "prompt": f"{opening} {'and so ' * (index % 7)}{index}",
        "max_tokens": 4 + index % 9,
        "temperature": (index % 3) / 2,
        "seed": index,
        "ignore_eos": True,
        "stream": True,
    }


async def stream_text(client: httpx.AsyncClient, body: dict[str, object]) -> str:
    text = ""
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        done = False
        async for line in reply.aiter_lines():
            done = done or line == "data: [DONE]"
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
        assert done
    return text


def together_and_alone(server: ServerProcess) -> tuple[list[str], list[str]]:
    """The texts of all streams at once, and of one after another."""

    async def run() -> tuple[list[str], list[str]]:
        limits = httpx.Limits(max_connections=NUM_STREAMS)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            bodies = [body_of(index) for index in range(NUM_STREAMS)]
            together = await asyncio.gather(*(stream_text(client, body) for body in bodies))
            alone = [await stream_text(client, body) for body in bodies]
            return list(together), alone

    return asyncio.run(run())


@pytest.mark.long  # two engines say so in every run, data_parallel/test_server.py
def test_streams_together_equal_their_solo_runs(server: ServerProcess) -> None:
    together, alone = together_and_alone(server)
    assert together == alone
    assert len(set(alone)) > NUM_STREAMS // 2
    assert server.metric(ACTIVE) == 0


@pytest.mark.long  # hostile/test_hostile.py closes connections in every run
@pytest.mark.one_engine
def test_closed_streams_give_their_blocks_back_within_a_step(slow_server: ServerProcess) -> None:
    server = slow_server
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}

    async def run() -> None:
        limits = httpx.Limits(max_connections=NUM_STREAMS)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            requests = [
                client.build_request(
                    "POST", "/v1/completions", json={**body, "prompt": f"{index} x" * 9}
                )
                for index in range(NUM_STREAMS)
            ]
            replies = await asyncio.gather(*(client.send(each, stream=True) for each in requests))
            assert eventually(lambda: server.metric(RUNNING) == NUM_STREAMS, 30)
            gap = steps_between_readings(server)
            for reply in replies[::2]:
                await reply.aclose()
            check_return(server, gap)
            for reply in replies[1::2]:
                await reply.aclose()

    asyncio.run(run())
    assert eventually(lambda: server.metric(ACTIVE) == 0, 10)
    assert server.metric(RUNNING) == 0


def steps_between_readings(server: ServerProcess) -> float:
    """Return how many steps pass at most from one reading of the metrics to the next: what a
    process that waits for its core does not get to see."""
    steps = [server.metric(STEPS) for _ in range(NUM_READINGS)]
    return max(after - before for before, after in pairwise(steps))


def check_return(server: ServerProcess, gap: float) -> None:
    """Half the streams have just been closed: the step under way may still hold their blocks, the
    next does not; one more passes while the numbers are read, or as many as pass at most between
    two readings, now or before: the server reads of closed streams as late as it answers."""
    steps, active, running = server.metrics(STEPS, ACTIVE, RUNNING)
    closed_at, before = steps, active
    while running > NUM_STREAMS // 2:
        assert steps <= closed_at + 2 + max(gap, 1)
        read = steps
        steps, active, running = server.metrics(STEPS, ACTIVE, RUNNING)
        gap = max(gap, steps - read)
    assert running == NUM_STREAMS // 2
    # The closed ones held a half, give or take a block each; those that run grew by one at most.
    assert active <= before / 2 + NUM_STREAMS // 2
