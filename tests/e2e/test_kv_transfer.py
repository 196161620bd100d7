"""Two real servers: one has by TCP what the other has computed, and is held up by nothing."""

import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from bench.make_models import AGENT, write_checkpoint

from tests.e2e.disk_kills import disk_flags
from tests.e2e.server_process import ServerProcess, eventually, server_process
from tests.storage.network.ends import free_address

pytestmark = pytest.mark.one_engine  # which listens at one address
NUM_TOKENS = 2000
SOURCE = "quire:prompt_tokens_cached_by_source_total{source="
RECEIVED = 'quire:kv_transfer_blocks_total{event="received"'


class Pair(NamedTuple):
    """A server that offers its blocks, and one that asks for them."""

    offers: ServerProcess
    asks: ServerProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, address = tmp_path_factory.mktemp("kv"), free_address()
    write_checkpoint(AGENT, folder / AGENT, (), seed=1234)
    secret = folder / "secret"
    secret.write_text("what all of these engines know\n")
    flags = [str(folder / AGENT), "--served-model-name", "agent", "--max-model-len", "4096"]
    flags += ["--dtype", "float32", "--kv-transfer-secret-file", str(secret)]
    offered = (*disk_flags(folder / "offers", "1G"), "--kv-transfer-listen", str(address))
    asked = (*disk_flags(folder / "asks", "1G"), "--kv-transfer-peer", str(address))
    with (
        server_process(*flags, *offered, ready=False) as offers,
        server_process(*flags, *asked, ready=False) as asks,
    ):
        offers.wait_ready()
        asks.wait_ready()
        yield Pair(offers, asks)


def prompt_of(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(100, 2000) for _ in range(NUM_TOKENS)]


def ask(server: ServerProcess, prompt: list[int]) -> tuple[str, int, str]:
    """The text, how many tokens of the prompt were not computed, and the id of the request."""
    body = {"model": "agent", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    reply = server.client.post("/v1/completions", json=body | {"ignore_eos": True})
    reply.raise_for_status()
    answer = reply.json()
    details = answer["usage"]["prompt_tokens_details"] or {}
    return answer["choices"][0]["text"], details.get("cached_tokens", 0), answer["id"]


def wait_until_offered(pair: Pair) -> None:
    """Until the second server knows all that the first one has."""

    def knows_all() -> bool:
        num_held = pair.offers.metric("quire:prefix_disk_held_blocks")
        return num_held > 0 and pair.asks.metric("quire:kv_transfer_offered_blocks") == num_held

    assert eventually(knows_all, 30.0)
    time.sleep(0.5)
    assert eventually(knows_all, 30.0)


def test_a_long_prefix_is_had_from_the_other_server(pair: Pair) -> None:
    prompt = prompt_of(1)
    text, num_cached, _ = ask(pair.offers, prompt)
    assert num_cached == 0
    wait_until_offered(pair)
    counters = (f'{SOURCE}"peer"', f'{SOURCE}"disk"', RECEIVED)
    before = pair.asks.metrics(*counters)
    again, num_cached, request_id = ask(pair.asks, prompt)
    assert again == text
    assert num_cached >= NUM_TOKENS - 16
    after = pair.asks.metrics(*counters)
    counted = [now - then for now, then in zip(after, before, strict=True)]
    assert counted == [num_cached, 0, num_cached // 16]
    timeline = pair.asks.client.get(f"/v1/requests/{request_id}").text
    assert "waits_for_peer" in timeline and "loaded_from_peer" in timeline
