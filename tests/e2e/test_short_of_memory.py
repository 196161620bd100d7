"""A server with KV memory for a few requests at once and swap space beside it: texts are those of a
server that has enough, and it tells what it did.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from tests.e2e.server_process import MODEL, ServerProcess, server_process
from tests.long import rest_is_long

Reply: TypeAlias = dict[str, Any]
NUM_REQUESTS = 8
NUM_TOKENS = 60
pytestmark = pytest.mark.one_engine  # whose blocks are few
COPIES = 'quire:kv_blocks_moved_total{kind="copy"}'
PROMPTS = [f"Enter {name}, alone. {name}:\nMy lord, " * 2 for name in "ABCDEFGH"]
FLAGS = ("--dtype", "float32", "--max-num-batched-tokens", "64")
FEW = ("--kv-cache-tokens", "300", "--max-model-len", "300")


@pytest.fixture(scope="module", params=rest_is_long(["swap"], ["swap", "recompute"]))
def short(request: pytest.FixtureRequest) -> Iterator[tuple[str, ServerProcess]]:
    mode: str = request.param
    with server_process(*FLAGS, *FEW, "--swap-space", "0.05", "--preemption-mode", mode) as running:
        yield mode, running


@pytest.fixture(scope="module")
def enough() -> Iterator[list[str]]:
    with server_process(*FLAGS) as running:
        yield [complete(running, prompt)["choices"][0]["text"] for prompt in PROMPTS]


def complete(server: ServerProcess, prompt: str, **fields: object) -> Reply:
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    reply = server.client.post("/v1/completions", json={**body, **fields})
    assert reply.status_code == 200, reply.text
    found: Reply = reply.json()
    return found


@pytest.mark.long  # models that ranks share are swapped so in every run, ranks/test_families.py
def test_texts_are_those_of_a_server_with_enough(
    short: tuple[str, ServerProcess], enough: list[str]
) -> None:
    mode, server = short
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        replies = list(pool.map(lambda prompt: complete(server, prompt), PROMPTS))
    assert [reply["choices"][0]["text"] for reply in replies] == enough
    by_kind = {
        kind: server.metric(f'quire:preemptions_total{{kind="{kind}"}}')
        for kind in ("swap", "recompute")
    }
    assert by_kind[mode] > 0 and sum(by_kind.values()) == by_kind[mode]
    wasted = server.metric("quire:wasted_prefill_tokens_total")
    assert wasted == 0 if mode == "swap" else wasted > 0
    assert server.metric('quire:kv_blocks{state="swapped"}') == 0
    assert server.metric('quire:kv_blocks{state="active"}') == 0
    reasons = {"swap": "swapped_out", "recompute": "preempted_for_blocks"}
    timelines = [timeline_of(server, reply) for reply in replies]
    events = [event for timeline in timelines for event in timeline["choices"][0]["events"]]
    put_back = [event for event in events if event["event"] == reasons[mode]]
    assert put_back and any(event.get("other") for event in put_back)


def timeline_of(server: ServerProcess, reply: Reply) -> Reply:
    found: Reply = server.client.get(f"/v1/requests/{reply['id']}").json()
    for choice in found["choices"]:
        assert sum(choice["parts"].values()) == found["total_ms"]
    return found


def test_choices_share_one_prompt(short: tuple[str, ServerProcess]) -> None:
    _, server = short
    before = server.metric(COPIES)
    prompt = "Now is the winter of our discontent made glorious summer by this sun of York"
    reply = complete(server, prompt, n=4, max_tokens=30, temperature=1, seed=3)
    events = [choice["events"] for choice in timeline_of(server, reply)["choices"]]
    forked = [event for each in events for event in each if event["event"] == "forked"]
    assert len(forked) == 3
    assert server.metric(COPIES) == before + 3
    alone = complete(server, prompt, max_tokens=30, temperature=1, seed=3)
    assert alone["choices"][0]["text"] == reply["choices"][0]["text"]
