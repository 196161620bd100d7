"""`quire serve --data-parallel-size 2` as its clients see it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.e2e.many_streams import NUM_STREAMS, together_and_alone
from tests.e2e.server_process import (
    MODEL,
    ServerProcess,
    eventually,
    server_process,
)

FLAGS = ("--data-parallel-size", "2", "--dtype", "float32", "--max-num-seqs", str(NUM_STREAMS))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(*FLAGS) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


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
    """Ask until both have worked."""
    counters = [f'quire:generation_tokens_total{{engine="{number}"' for number in (0, 1)]
    before = server.metrics(*counters)

    def complete(prompt: str) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 200, "ignore_eos": True}
        server.client.post("/v1/completions", json=body).raise_for_status()

    def have_worked() -> bool:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(complete, ["One, two", "Three, four", "Five, six", "Seven"]))
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
