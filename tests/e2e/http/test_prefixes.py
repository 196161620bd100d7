"""Pinned prefixes on a real server: they outlive a flood of other prompts, what is deleted is
evicted again, and another engine pins them again.
"""

from collections.abc import Iterator
from itertools import count

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

pytestmark = pytest.mark.one_engine  # of which the cache is flooded
PREFIX = "You are the clerk of a small library by the sea, and answer in one short sentence. " * 6
CHAT = [{"role": "system", "content": PREFIX}]
MAX_MODEL_LEN, NUM_BLOCKS = 512, 97
"""Of the 96 blocks that can be used the longest request needs 32, and pins may hold half."""
FLAGS = ("--max-model-len", str(MAX_MODEL_LEN), "--num-gpu-blocks-override", str(NUM_BLOCKS))
NUMBERS = count()


def pinned(server: ServerProcess, **body: object) -> httpx.Response:
    return server.client.post("/v1/prefixes", json=body)


def num_cached(server: ServerProcess) -> int:
    """The tokens of the prompt that a chat which goes on from the prefix need not compute."""
    messages = [*CHAT, {"role": "user", "content": f"Go on with {next(NUMBERS)}."}]
    body = {"messages": messages, "max_tokens": 1}
    reply = server.client.post("/v1/chat/completions", json=body)
    cached: int = reply.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def flood(server: ServerProcess) -> None:
    """Run prompts that are like no other until they took more blocks than there are."""
    for _ in range(2 * NUM_BLOCKS * 16 // 400):
        prompt = [next(NUMBERS) % 1000 + 10, *range(10, 409)]
        body = {"prompt": prompt, "max_tokens": 1}
        server.client.post("/v1/completions", json=body).raise_for_status()


def blocks(server: ServerProcess) -> dict[str, int]:
    told: dict[str, int] = server.client.get("/v1/loads").json()["blocks"]
    return told


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(*FLAGS) as server:
        yield server


def test_a_pinned_prefix_outlives_a_flood_and_is_evicted_once_it_is_deleted(
    server: ServerProcess,
) -> None:
    num_cached(server)
    flood(server)
    assert num_cached(server) < 32, "without a pin hardly anything is left"
    prefix = pinned(server, messages=CHAT).raise_for_status().json()
    assert prefix["state"] == "pinned" and prefix["num_pinned_tokens"] >= 64
    for _ in range(2):
        flood(server)
        assert num_cached(server) >= prefix["num_pinned_tokens"]
    told = blocks(server)
    assert told["pinned"] == prefix["num_blocks"]
    assert sum(told[each] for each in ("free", "cached", "active", "pinned")) == NUM_BLOCKS - 1
    assert server.metric('quire:kv_blocks{state="pinned"}')
    server.client.delete(f"/v1/prefixes/{prefix['id']}").raise_for_status()
    flood(server)
    assert num_cached(server) < 32
    assert blocks(server)["pinned"] == 0


def test_after_a_reset_it_is_computed_again(server: ServerProcess) -> None:
    prefix = pinned(server, messages=CHAT).raise_for_status().json()
    server.client.post("/reset_prefix_cache").raise_for_status()
    path = f"/v1/prefixes/{prefix['id']}"
    assert eventually(lambda: server.client.get(path).json() == prefix, 30)
    flood(server)
    assert num_cached(server) >= prefix["num_pinned_tokens"]
    server.client.delete(path).raise_for_status()


def test_more_than_pins_may_hold_is_refused_and_the_longest_request_runs(
    server: ServerProcess,
) -> None:
    ids = [5, *range(10, 409)]
    pins = [pinned(server, prompt=ids).raise_for_status().json()["id"]]
    pins.append(pinned(server, prompt=[6, *ids[:350]]).raise_for_status().json()["id"])
    refused = pinned(server, prompt=[7, *ids])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "pins_full")
    assert (
        "25 KV blocks more would be pinned beside 46, and pins may hold 48 of the 96: 0.5 of them"
    ) in refused.json()["error"]["message"]
    body = {"prompt": ids, "max_tokens": MAX_MODEL_LEN - len(ids), "ignore_eos": True}
    reply = server.client.post("/v1/completions", json=body).raise_for_status()
    assert reply.json()["usage"]["completion_tokens"] == MAX_MODEL_LEN - len(ids)
    for each in pins:
        server.client.delete(f"/v1/prefixes/{each}").raise_for_status()


def test_another_load_of_the_model_has_it_again(server: ServerProcess) -> None:
    prefix = pinned(server, messages=CHAT).raise_for_status().json()
    path = f"/v1/prefixes/{prefix['id']}"
    server.client.post("/v1/models/quire-bundled/unload").raise_for_status()
    assert server.client.get(path).json()["state"] == "lost"
    server.client.post("/v1/models/quire-bundled/load").raise_for_status()
    assert eventually(lambda: server.client.get(path).json() == prefix, 30)
    flood(server)
    assert num_cached(server) >= prefix["num_pinned_tokens"]
    server.client.delete(path).raise_for_status()


def test_another_engine_pins_it_again(server: ServerProcess) -> None:
    prefix = pinned(server, messages=CHAT).raise_for_status().json()
    path = f"/v1/prefixes/{prefix['id']}"
    server.engine_process().kill()
    assert eventually(lambda: server.client.get(path).json()["state"] == "lost", 10)
    assert eventually(lambda: server.client.get(path).json() == prefix, 60)
    flood(server)
    assert num_cached(server) >= prefix["num_pinned_tokens"]
    assert blocks(server)["pinned"] == prefix["num_blocks"]
    server.client.delete(path).raise_for_status()
    assert eventually(lambda: num_cached(server) >= 0 and blocks(server)["pinned"] == 0, 10)
