"""`quire serve --data-parallel-size 2` as its clients see it."""

import asyncio
import signal
import time
from collections.abc import Iterator

import openai
import psutil
import pytest

from tests.e2e.server_process import (
    MODEL,
    ServerProcess,
    engines_of,
    eventually,
    server_process,
)
from tests.e2e.test_many_streams import NUM_STREAMS, together_and_alone

FLAGS = ("--data-parallel-size", "2", "--dtype", "float32", "--max-num-seqs", str(NUM_STREAMS))
KILL_AFTER_S = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(*FLAGS) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


async def texts(
    server: ServerProcess, prompts: list[str], kills: psutil.Process | None
) -> list[str]:
    """The streamed outputs of prompts sent at once; an engine is killed meanwhile."""
    url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:

        async def text(prompt: str) -> str:
            stream = await client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=200,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        running = asyncio.gather(*map(text, prompts))
        if kills is not None:
            await asyncio.sleep(KILL_AFTER_S)
            kills.send_signal(signal.SIGKILL)
        return list(await running)


def test_streams_together_equal_their_solo_runs_and_all_engines_work(
    server: ServerProcess,
) -> None:
    before = [server.metric(f'quire:generation_tokens_total{{engine="{n}"') for n in (0, 1)]
    together, alone = together_and_alone(server)
    assert together == alone
    for number in (0, 1):
        counted = server.metric(f'quire:generation_tokens_total{{engine="{number}"')
        assert counted > before[number]
    assert server.metric("quire:num_requests_running") == 0


@pytest.mark.long  # tests/engines/local kills one of two engines in every run
def test_a_killed_engine_under_load_loses_nothing(server: ServerProcess) -> None:
    prompts = [f"{index} said the king" for index in range(12)]
    alone = asyncio.run(texts(server, prompts, None))
    lost = server.metric('quire:engine_restarts_total{cause="killed"')
    assert asyncio.run(texts(server, prompts, engines_of(server.process.pid)[0])) == alone
    assert server.metric('quire:engine_restarts_total{cause="killed"') == lost + 1
    assert eventually(lambda: len(engines_of(server.process.pid)) == 2, 30)


def test_turns_of_a_conversation_stay_and_choices_stay_together(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    prompt, routes = "Once upon a time there was a king. " * 8, []
    for turn in range(4):
        reply = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, n=2)
        timeline = server.client.get(f"/v1/requests/{reply.id}").json()
        for choice in timeline["choices"]:
            routes += [e["other"] for e in choice["events"] if e["event"] == "routed"]
        prompt += f"{reply.choices[0].text} And then, {turn}?"
    assert len(routes) == 8
    assert len(set(routes)) == 1


def test_prefixes_probes_and_resets_are_of_all_engines(server: ServerProcess) -> None:
    text = "The queen had a garden with a wall around it. " * 6
    made = server.client.post("/v1/prefixes", json={"prompt": text})
    assert made.is_success, made.text

    def num_cached() -> int:
        reply = server.client.post("/v1/cache/probe", json={"prompt": text})
        return int(reply.json()["cached_tokens"])

    assert num_cached() > 32
    server.client.post("/reset_prefix_cache")
    assert eventually(lambda: num_cached() > 32, 10)  # it is pinned again
    assert server.client.delete(f"/v1/prefixes/{made.json()['id']}").is_success
    server.client.post("/reset_prefix_cache")
    assert eventually(lambda: num_cached() == 0, 10)


def use_both_engines(server: ServerProcess) -> None:
    """Ask until both have worked: one that was restarted may be slow to take its first request."""
    counters = [f'quire:generation_tokens_total{{engine="{number}"' for number in (0, 1)]
    before = server.metrics(*counters)

    def have_worked() -> bool:
        asyncio.run(texts(server, ["One, two", "Three, four", "Five, six", "Seven"], kills=None))
        return all(now > then for now, then in zip(server.metrics(*counters), before, strict=True))

    assert eventually(have_worked, 60)


def test_what_is_of_one_engine_has_its_number(server: ServerProcess) -> None:
    use_both_engines(server)
    for number in (0, 1):
        labels = f'{{engine="{number}"}}'
        assert server.metric(f"quire:engine_process_resident_memory_bytes{labels}") > 0
        path = f"/v1/models/{MODEL}/flight_record?engine={number}"
        assert server.client.post(path).json()["steps"] > 0
    path = f"/v1/models/{MODEL}/flight_record?engine=2"
    assert server.client.post(path).status_code == 404
    with server.client.stream("GET", "/v1/live") as reply:
        events = (line for line in reply.iter_lines() if line.startswith("data: "))
        assert '"num_blocks":' in [next(events), next(events)][1]


@pytest.mark.long  # the drain of one is in every run
def test_the_drain_ends_both_engines() -> None:
    with server_process(*FLAGS) as own:
        engines = engines_of(own.process.pid)
        assert len(engines) == 2
        assert own.stop() == 0
    deadline = time.monotonic() + 10
    while any(each.is_running() for each in engines):
        assert time.monotonic() < deadline
        time.sleep(0.05)
