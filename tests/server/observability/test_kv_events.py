"""`GET /v1/kv_events` and `POST /reset_prefix_cache`: what the prefix cache tells and is told."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.kv_events import KVEvent, KVEventKind, Medium
from quire.engine.config import TracingConfig
from quire.engine.messages import EngineOutput
from quire.scheduler.step import NO_STATS
from quire.server.config import ApiKey, ServerConfig
from quire.server.observability.kv_event_feed import KVEventFeed
from tests.server.served import Served, eventually, plain_config, serving, with_model

STORED = KVEvent(
    KVEventKind.STORED, (b"\x01\xff", b"\x02\x00"), b"\x00\xab", tuple(range(32)), group=1
)
REMOVED = KVEvent(KVEventKind.REMOVED, (b"\x01\xff",), medium=Medium.HOST)
CLEARED = KVEvent(KVEventKind.CLEARED)


def told() -> ServerConfig:
    config = plain_config()
    return with_model(
        config,
        engine=replace(config.model.engine, tracing=TracingConfig(enable_kv_cache_events=True)),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(told()) as served:
        yield served


@contextmanager
def listening(server: Served, last_id: int | None = None) -> Iterator[Iterator[str]]:
    """The lines, once the stream has begun."""
    headers = {} if last_id is None else {"last-event-id": str(last_id)}
    url = server.url + "/v1/kv_events"
    with httpx.stream("GET", url, headers=headers, timeout=10) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in reply.iter_lines() if line)
        assert next(lines).startswith(":")
        yield lines


def say(server: Served, *events: KVEvent) -> None:
    server.do(lambda: server.engine.tell(kv_events=events))


def data(line: str) -> dict[str, object]:
    assert line.startswith("data: ")
    body: dict[str, object] = json.loads(line.removeprefix("data: "))
    return body


def id_of(line: str) -> int:
    assert line.startswith("id: ")
    return int(line.removeprefix("id: "))


def test_events_have_vllms_fields(server: Served) -> None:
    with listening(server) as lines:
        say(server, STORED, REMOVED)
        say(server, CLEARED)
        ids, bodies = zip(*[(id_of(next(lines)), data(next(lines))) for _ in range(3)], strict=True)
    assert list(ids) == [ids[0], ids[0] + 1, ids[0] + 2]
    assert bodies == (
        {
            "type": "BlockStored",
            "block_hashes": ["01ff", "0200"],
            "parent_block_hash": "00ab",
            "token_ids": list(range(32)),
            "block_size": 16,
            "group_idx": 1,
            "medium": "GPU",
            "lora_name": None,
        },
        {"type": "BlockRemoved", "block_hashes": ["01ff"], "group_idx": 0, "medium": "CPU"},
        {"type": "AllBlocksCleared"},
    )


def test_last_event_id_replays_what_was_missed(server: Served) -> None:
    with listening(server) as lines:
        say(server, CLEARED)
        last_id = id_of(next(lines))
    say(server, REMOVED, REMOVED)
    with listening(server, last_id) as lines:
        for number in (1, 2):
            assert id_of(next(lines)) == last_id + number
            assert data(next(lines))["type"] == "BlockRemoved"
    with listening(server, last_id + 2) as lines:
        say(server, CLEARED)
        assert id_of(next(lines)) == last_id + 3


@pytest.mark.parametrize("last_id", [0, 10**17])
def test_a_gap_is_told(server: Served, last_id: int) -> None:
    with listening(server, last_id) as lines:
        say(server, STORED)
        assert next(lines) == "event: gap"
        gap = data(next(lines))
        assert (gap["type"], gap["after"]) == ("Gap", last_id)
        assert id_of(next(lines)) == gap["resumes_at"]


def test_an_id_that_is_none_is_refused(server: Served) -> None:
    for given_id in ("x", "-1", "1" * 40):
        reply = server.client.get("/v1/kv_events", headers={"last-event-id": given_id})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "last-event-id")


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    max_events=st.integers(1, 10),
    max_bytes=st.integers(500, 2000),
    place=st.integers(0, 40),
)
def test_the_ring_is_bounded_and_a_reader_misses_nothing_unsaid(
    sizes: list[int], max_events: int, max_bytes: int, place: int
) -> None:
    async def run() -> None:
        feed = KVEventFeed(100, max_events=max_events, max_bytes=max_bytes)
        frames = []
        for index, size in enumerate(sizes):
            event = KVEvent(KVEventKind.STORED, (bytes([index]),), None, (7,) * size)
            feed.on_output(EngineOutput(1, 0, 0.0, (), (), (), NO_STATS, (), (event,)))
            frames += await feed.read(100 + index, 1)
        assert feed.next_id == 100 + len(sizes)
        kept = frames[feed.oldest_id - 100 :]
        assert len(kept) <= max_events and sum(map(len, kept)) <= max_bytes
        start = 100 + place
        if start != feed.next_id:
            wanted = frames[place : place + 3] if feed.holds(start) else []
            assert await feed.read(start, 3) == wanted

    asyncio.run(run())


def test_a_listener_that_falls_behind_is_cut_off(server: Served) -> None:
    """It reads nothing while more events come than socket and ring hold."""
    big = STORED._replace(token_ids=tuple(range(10_000, 40_000)))
    with listening(server) as lines:
        for _ in range(60):
            say(server, *[big] * 10)
        rest = list(lines)  # the stream ends by itself
    assert rest[-2] == "event: gap"
    gap = data(rest[-1])
    assert gap["after"] == id_of(rest[-4])
    assert isinstance(gap["resumes_at"], int) and gap["resumes_at"] > id_of(rest[-4]) + 1


def test_a_listener_does_not_hold_up_the_end() -> None:
    with serving(told()) as served:
        ended = threading.Event()

        def listen() -> None:
            with listening(served) as lines:
                assert list(lines) == []
            ended.set()

        thread = threading.Thread(target=listen)
        thread.start()
        assert eventually(lambda: served.server.service.num_open == 1)
        time.sleep(0.05)
        served.server.handle_exit(signal.SIGTERM, None)
        assert ended.wait(5)
        thread.join(5)


def test_events_are_off_unless_asked_for(served: Served) -> None:
    reply = served.client.get("/v1/kv_events")
    assert reply.status_code == 404
    assert "--enable-kv-cache-events" in reply.json()["error"]["message"]


def test_the_prefix_cache_is_reset(served: Served) -> None:
    before = served.engine.num_resets
    reply = served.client.post("/reset_prefix_cache")
    assert (reply.status_code, reply.json()) == (200, {"status": "sent"})
    assert served.engine.num_resets == before + 1
    assert served.client.get("/reset_prefix_cache").status_code == 405
    assert served.client.post("/reset_prefix_cache", json={}).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"tokens": [1]}', "tokens", "unknown_parameter"),
        (b"all", None, "invalid_json"),
        (b"[]", None, "invalid_json"),
    ],
)
def test_a_reset_with_a_body_that_says_something_is_refused(
    served: Served, body: bytes, param: str | None, code: str
) -> None:
    before = served.engine.num_resets
    reply = served.client.post("/reset_prefix_cache", content=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)
    assert served.engine.num_resets == before


def test_reset_and_events_need_a_key() -> None:
    with serving(replace(told(), api_keys=(ApiKey("k"),))) as served:
        assert served.client.post("/reset_prefix_cache").status_code == 401
        assert served.client.get("/v1/kv_events").status_code == 401
        assert served.engine.num_resets == 0


def test_reset_waits_for_the_model() -> None:
    with serving(plain_config(), loaded=False) as served:
        assert served.client.post("/reset_prefix_cache").status_code == 503
