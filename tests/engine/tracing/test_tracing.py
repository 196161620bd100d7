"""With `--otlp-traces-endpoint` a collector hears of every call of the cache, to the last one;
without it, or with a collector that is down, nothing else changes.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from quire.engine.config import (
    TOY_MODEL,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    SchedulingConfig,
    SupervisionConfig,
    TracingConfig,
)
from quire.engine.recording.ring import create_ring
from quire.engine.startup.build import build_engine
from quire.engines.process.client import EnginePhase
from quire.engines.process.flight_ring import FlightRing
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import TokenStream
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.request import NewRequest, Sampling, Stopping
from tests.collector import Attributes, collecting
from tests.engine.recording_subscriber import RecordingSubscriber
from tests.engine.toy_starter import toy_starter

CONFIG = EngineConfig(
    ModelConfig(TOY_MODEL),
    memory=MemoryConfig(block_size=8, num_gpu_blocks_override=101),
    scheduling=SchedulingConfig(max_num_seqs=4),
)
PROMPT = tuple(range(20))
NUM_REQUESTS = 3
MAX_TOKENS = 30


def total(calls: list[Attributes], key: str) -> int:
    return sum(int(call[key]) for call in calls)


class Served(NamedTuple):
    texts: list[list[int]]
    ending_s: float


async def served(config: EngineConfig) -> Served:
    """The requests one after the other by an engine process that then ends."""
    client = EngineSupervisor(config, RecordingSubscriber(), SupervisionConfig(0), toy_starter())
    await client.start()
    try:
        async with asyncio.timeout(60):
            while client.phase is not EnginePhase.READY:
                assert client.phase is not EnginePhase.DOWN, client.down_reason
                await asyncio.sleep(0.01)
            texts = [await tokens(client.submit(request(i))) for i in range(NUM_REQUESTS)]
    finally:
        began = time.monotonic()
        await client.close()
        ending_s = time.monotonic() - began
    return Served(texts, ending_s)


def request(number: int) -> NewRequest:
    sampling = Sampling(temperature=1.0, seed=number)
    return NewRequest(f"r{number}", PROMPT, sampling, Stopping(max_tokens=MAX_TOKENS))


async def tokens(stream: TokenStream) -> list[int]:
    return [token async for delta in stream for token in delta.token_ids]


async def test_every_call_of_the_cache_is_a_span_and_the_text_is_the_same() -> None:
    with collecting() as collector:
        texts, _ = await served(
            replace(CONFIG, tracing=TracingConfig(otlp_traces_endpoint=collector.endpoint))
        )
    assert texts == (await served(CONFIG)).texts
    assert {path for path, _ in collector.posts} == {"/somewhere/v1/traces"}
    assert {
        each.value.string_value
        for _, post in collector.posts
        for resource in post.resource_spans
        for each in resource.resource.attributes
        if each.key == "service.name"
    } == {"quire"}
    steps = NUM_REQUESTS * MAX_TOKENS
    assert Counter(span.name for span in collector.spans()) == {
        "kv_cache.admit": NUM_REQUESTS,
        "kv_cache.grow": steps - NUM_REQUESTS,
        "kv_cache.advance": steps,
        "kv_cache.release": NUM_REQUESTS,
    }
    assert all(
        0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans()
    )


async def test_spans_say_what_was_asked_and_what_came_of_it() -> None:
    with collecting() as collector:
        await served(
            replace(CONFIG, tracing=TracingConfig(otlp_traces_endpoint=collector.endpoint))
        )
    assert collector.calls("admit") == [
        {
            "quire.request_id": f"r{number}",
            "quire.num_tokens": 20,
            "quire.num_cached_tokens": cached,
            "quire.num_blocks": 3,
        }
        for number, cached in enumerate((0, 16, 16))
    ]
    grown = collector.calls("grow")
    assert grown[0] == {
        "quire.request_id": "r0",
        "quire.start": 20,
        "quire.end": 21,
        "quire.is_short": False,
        "quire.num_blocks": 0,
    }
    assert collector.calls("advance")[0] == {
        "quire.request_id": "r0",
        "quire.num_computed_tokens": 20,
        "quire.num_sealed_blocks": 2,
    }
    taken = total(collector.calls("admit"), "quire.num_blocks") + total(grown, "quire.num_blocks")
    assert taken == total(collector.calls("release"), "quire.num_blocks") == NUM_REQUESTS * 7


def test_a_reset_and_what_a_swapped_request_gives_up_are_told() -> None:
    """Two requests whose outputs do not fit side by side: one is swapped out, and then aborted."""
    config = replace(
        CONFIG,
        memory=replace(CONFIG.memory, num_gpu_blocks_override=10, swap_space=1.0),
        scheduling=replace(
            CONFIG.scheduling, max_model_len=72, preemption_mode=PreemptionMode.SWAP
        ),
    )
    with collecting() as collector:
        engine, _ = build_engine(
            replace(config, tracing=TracingConfig(otlp_traces_endpoint=collector.endpoint)),
            on_progress=lambda *_: None,
            clock=time.monotonic,
        )
        for name in ("a", "b"):
            prompt = (ord(name), *PROMPT)
            engine.submit(NewRequest(name, prompt, Sampling(), Stopping(max_tokens=MAX_TOKENS)))
        while not engine.stats.num_swaps:
            engine.step()
        engine.abort("a")
        engine.abort("b")
        engine.reset_prefix_cache()
        engine.close()
    (forgotten,) = collector.calls("forget")
    assert forgotten["quire.request_id"] in ("a", "b")
    assert total([forgotten], "quire.num_blocks") > 0
    assert total(collector.calls("reset"), "quire.num_cached_blocks") > 0


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_pin_and_blocks_from_disk_are_told(tmp_path: Path, is_recorded: bool) -> None:
    """One engine writes a prompt to disk and pins it, the next reads it."""
    memory = replace(CONFIG.memory, prefix_cache_dir=str(tmp_path), prefix_cache_bytes=1 << 20)
    ring = FlightRing(create_ring())
    with collecting() as collector:
        for name in ("first", "second"):
            config = replace(
                CONFIG,
                memory=memory,
                scheduling=replace(CONFIG.scheduling, max_model_len=72),
                tracing=TracingConfig(otlp_traces_endpoint=collector.endpoint),
                ring_fd=os.dup(ring.fd) if is_recorded else None,
            )
            engine, _ = build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
            pinning = NewRequest(name, PROMPT, Sampling(), Stopping(0), pins_prompt=True)
            assert engine.submit(pinning) is None
            while engine.has_work:
                engine.step()
            engine.unpin(name)
            engine.close()
    ring.close()
    (came_in,) = collector.calls("take_in")
    assert (came_in["quire.request_id"], came_in["quire.num_blocks"]) == ("second", 2)
    for verb in ("pin", "unpin"):
        told = [
            (call["quire.request_id"], call["quire.num_blocks"]) for call in collector.calls(verb)
        ]
        assert told == [("first", 2), ("second", 2)]


def test_what_finds_no_room_is_told_too() -> None:
    """Two requests whose outputs do not fit side by side: one is preempted, and later waits."""
    config = replace(
        CONFIG,
        memory=replace(CONFIG.memory, num_gpu_blocks_override=10),
        scheduling=replace(CONFIG.scheduling, max_model_len=72),
    )
    with collecting() as collector:
        engine, _ = build_engine(
            replace(config, tracing=TracingConfig(otlp_traces_endpoint=collector.endpoint)),
            on_progress=lambda *_: None,
            clock=time.monotonic,
        )
        for name in ("a", "b"):
            prompt = (ord(name), *PROMPT)
            engine.submit(NewRequest(name, prompt, Sampling(), Stopping(max_tokens=MAX_TOKENS)))
        while engine.has_work:
            engine.step()
        engine.close()
    assert [call for call in collector.calls("grow") if call["quire.is_short"]]
    short = [call for call in collector.calls("admit") if "quire.num_short_blocks" in call]
    assert all(total([call], "quire.num_short_blocks") > 0 for call in short)
    assert short
    assert len(collector.calls("admit")) - len(short) == len(collector.calls("release")) == 3


def test_missing_packages_are_said_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    config = EngineConfig(
        ModelConfig("nowhere"),
        tracing=TracingConfig(otlp_traces_endpoint="http://127.0.0.1:1/v1/traces"),
    )
    with pytest.raises(ValueError, match="--otlp-traces-endpoint .*`make install EXTRAS=otel`"):
        build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)


WITHOUT = """
import sys, time
from quire.cache.kv_cache import KVCache
from quire.engines.process.flight_ring import FlightRing
from quire.engine.recording.ring import create_ring
from quire.engine.startup.build import build_engine
from quire.engine.config import EngineConfig, ModelConfig
import quire.engine.process
config = EngineConfig(ModelConfig("toy"))
build_engine(config, on_progress=lambda *_: None, clock=time.monotonic)
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=60)
