"""`GET /v1/live`: one watch of the engine, shared by all who look on, each with what the key may
see."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from quire.engines.process.client import EnginePhase
from quire.scheduler.live.live_frame import LiveFrame, RequestPhase
from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from quire.server.observability.live.live_feed import (
    INTERVAL_S,
    MAX_WATCHERS,
    MAX_WATCHERS_PER_KEY,
    NUM_KEPT,
)
from tests.server.observability.live.frames import NO_CHANGE, entered, event, progress, whole
from tests.server.scripted_engine import NUM_BLOCKS
from tests.server.served import Served, eventually, plain_config, serving

ANN, BOB, ADMIN = "key-of-ann", "key-of-bob", "key-of-the-house"
Event = dict[str, Any]


@pytest.fixture
def server(served: Served) -> Iterator[Served]:
    served.engine.watched.clear()
    yield served
    assert eventually(lambda: served.metric("quire:live_watchers{") == 0)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    keys = (ApiKey(ANN, "ann"), ApiKey(BOB, "bob"))
    with serving(replace(plain_config(), api_keys=keys, admin_key=ADMIN)) as running:
        yield running


@contextmanager
def watching(server: Served, key: str = "", query: str = "") -> Iterator[Iterator[Event]]:
    """The events of a stream that has begun."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{server.url}/v1/live{query}"
    with httpx.stream("GET", url, headers=headers, timeout=10) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield (
            json.loads(line.removeprefix("data: "))
            for line in reply.iter_lines()
            if line.startswith("data: ")
        )


def tell(server: Served, frame: LiveFrame) -> None:
    server.do(lambda: server.engine.tell(live=frame))


def begun(server: Served, events: Iterator[Event]) -> Event:
    """The first picture of an engine that has nothing."""
    assert next(events)["state"] == "loaded"
    tell(server, whole(NUM_BLOCKS))
    return next(events)


def test_a_picture_comes_first_and_then_what_changes(server: Served) -> None:
    with watching(server) as events:
        engine = next(events)
        assert (engine["type"], engine["state"], engine["model"]) == (
            "engine",
            "loaded",
            "test-model",
        )
        assert server.engine.watched == [INTERVAL_S]
        tell(server, NO_CHANGE)  # of a watch before this one
        tell(server, whole(NUM_BLOCKS))
        picture = next(events)
        assert picture["type"] == "picture"
        assert picture["runs"] == [0, 1, 0, 1, NUM_BLOCKS - 1, 1]
        assert (picture["num_blocks"], picture["block_size"]) == (NUM_BLOCKS, 16)
        assert picture["figures"]["hit_rate"] == 0.25
        frame = LiveFrame(
            False,
            [3, 2, 16],
            [(16, (7,))],
            [entered(7, "cmpl-x-0")],
            [],
            [progress(7, RequestPhase.PREFILL, 0, event(Reason.ADMITTED, 4))],
            2,
        )
        tell(server, frame)
        changes = next(events)
        assert changes["type"] == "changes" and changes["runs"] == [3, 2, 16]
        assert changes["sets"] == [[16, [0]]]
        (request,) = changes["entered"]
        assert (request["n"], request["id"], request["prompt"]) == (0, "cmpl-x-0", 5)
        assert "key" not in request
        text = "Admitted; 4 tokens of its prompt were in the prefix cache."
        why = {"event": "admitted", "number": 4, "other": "", "text": text}
        assert changes["progress"] == [[0, "prefill", 4, 0, 0, why, None]]
        assert not {"targets", "pace"} & set(changes["figures"])
        assert changes["figures"]["unlisted"] == 2
    assert eventually(lambda: server.engine.watched == [INTERVAL_S, None])


def test_who_comes_later_shares_the_watch(server: Served) -> None:
    with watching(server) as first:
        begun(server, first)
        frame = LiveFrame(False, [3, 2, 2], [], [entered(7, "a")], [], [], 0)
        tell(server, frame._replace(progress=[progress(7, event=event(Reason.ADMITTED))]))
        next(first)
        with watching(server) as second:
            assert next(second)["type"] == "engine"
            picture = next(second)
            assert picture["runs"] == [0, 1, 0, 1, 2, 1, 3, 2, 2, 5, NUM_BLOCKS - 5, 1]
            assert [each["id"] for each in picture["requests"]] == ["a"]
            tell(server, NO_CHANGE)
            assert next(first)["type"] == next(second)["type"] == "changes"
            assert server.metric("quire:live_watchers{") == 2
        assert eventually(lambda: server.metric("quire:live_watchers{") == 1)
        assert server.engine.watched == [INTERVAL_S]
    assert eventually(lambda: server.engine.watched == [INTERVAL_S, None])


def test_preemptions_between_two_frames_are_told(server: Served) -> None:
    with watching(server) as events:
        begun(server, events)
        frame = LiveFrame(False, [], [], [entered(7, "a")], [], [], 0)
        tell(server, frame._replace(progress=[progress(7, event=event(Reason.ADMITTED))]))
        next(events)
        preempted = event(Reason.PREEMPTED_FOR_BLOCKS, 48, "b")
        server.do(lambda: server.engine.tell((("a", preempted), ("a", event(Reason.RESUMED)))))
        tell(server, NO_CHANGE)
        (told,) = next(events)["preempted"]
        assert told["n"] == 0
        text = "Preempted for b; 48 tokens were thrown away."
        why = {"event": "preempted_for_blocks", "number": 48, "other": "b", "text": text}
        assert told["why"] == why
        tell(server, NO_CHANGE)
        assert next(events)["preempted"] == []


def test_each_key_sees_its_own_requests_and_the_admin_all(guarded: Served) -> None:
    frame = LiveFrame(
        False,
        [2, 2, 16, 4, 1, 17],
        [(16, (8,)), (17, (8, 9))],
        [entered(8, "of-bob", "bob"), entered(9, "of-ann", "ann")],
        [],
        [progress(each, event=event(Reason.ADMITTED)) for each in (8, 9)],
        0,
    )
    with watching(guarded, ANN) as ann, watching(guarded, ADMIN) as admin:
        assert (next(ann)["type"], next(admin)["type"]) == ("engine", "engine")
        tell(guarded, whole(NUM_BLOCKS))
        assert (next(ann)["type"], next(admin)["type"]) == ("picture", "picture")
        tell(guarded, frame)
        own, everything = next(ann), next(admin)
    assert "bob" not in json.dumps(own)
    assert own["runs"] == [2, 2, 4, 4, 1, 16] and own["sets"] == [[16, [0]]]
    assert [(each["n"], each["id"]) for each in own["entered"]] == [(0, "of-ann")]
    keys = [(each["id"], each["key"]) for each in everything["entered"]]
    assert keys == [("of-bob", "bob"), ("of-ann", "ann")]
    assert everything["runs"] == [2, 2, 16, 4, 1, 17]
    assert guarded.client.get("/v1/live").status_code == 401


def test_so_many_may_look_on_and_no_more(guarded: Served) -> None:
    with ExitStack() as open_:
        streams = []

        def look_on(key: str) -> None:
            streams.append(open_.enter_context(watching(guarded, key)))
            assert next(streams[-1])["type"] == "engine"

        for _ in range(MAX_WATCHERS_PER_KEY):
            look_on(ANN)
        reply = guarded.client.get("/v1/live", headers={"x-api-key": ANN})
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "too_many_watchers")
        for _ in range(MAX_WATCHERS - MAX_WATCHERS_PER_KEY):
            look_on(ADMIN)
        reply = guarded.client.get("/v1/live", headers={"x-api-key": BOB})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "too_many_watchers")
        assert int(reply.headers["retry-after"]) > 0
    admin = {"x-api-key": ADMIN}

    def are_gone() -> bool:
        text = guarded.client.get("/metrics", headers=admin).text
        return 'quire:live_watchers{engine="0",model_name="test-model"} 0.0' in text

    assert eventually(are_gone)
    with watching(guarded, BOB) as events:
        assert next(events)["type"] == "engine"


def test_who_is_slow_skips_events_and_holds_nobody_up() -> None:
    with serving(plain_config(), send_buffer=4096) as served:
        with watching(served) as slow, watching(served) as quick:
            begun(served, quick)
            for number in range(60):
                long = entered(number, f"{number}-{'x' * 50_000}")
                left = [number - 1] if number else []
                told = [progress(number, event=event(Reason.ADMITTED))]
                tell(served, LiveFrame(False, [], [], [long], left, told, 0))
                assert next(quick)["type"] == "changes"
            tell(served, NO_CHANGE)
            kinds = [next(slow)["type"] for _ in range(3)]
            while kinds[-2:] != ["changes", "picture"]:
                kinds.append(next(slow)["type"])
            assert kinds[:2] == ["engine", "picture"]
            assert len(kinds) < 60
            assert served.metric("quire:live_events_skipped_total") > NUM_KEPT


def test_a_restarted_engine_is_told_anew(server: Served) -> None:
    model = server.server.service.default_model
    with watching(server) as events:
        begun(server, events)
        frame = LiveFrame(False, [], [], [entered(7, "a")], [], [], 0)
        tell(server, frame._replace(progress=[progress(7, event=event(Reason.ADMITTED))]))
        next(events)

        def lose() -> None:
            server.engine.phase = EnginePhase.RESTARTING
            model.live.on_engine_gone()

        def resume() -> None:
            server.engine.phase = EnginePhase.READY
            model.live.on_engine_resumed()

        server.do(lose)
        tell(server, NO_CHANGE)
        assert next(events)["state"] == "restarting"
        server.do(resume)
        assert server.engine.watched == [INTERVAL_S, INTERVAL_S]
        assert next(events)["state"] == "loaded"
        tell(server, whole(NUM_BLOCKS))
        picture = next(events)
        assert (picture["type"], picture["requests"]) == ("picture", [])


def test_watchers_do_not_hold_up_the_end() -> None:
    with serving(plain_config()) as served:
        ended = threading.Event()

        def listen() -> None:
            with watching(served) as events:
                assert [each["type"] for each in events] == ["engine"]
            ended.set()

        thread = threading.Thread(target=listen)
        thread.start()
        assert eventually(lambda: served.engine.watched == [INTERVAL_S])
        served.server.handle_exit(signal.SIGTERM, None)
        assert ended.wait(5)
        thread.join(5)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [("?model=nobody", 404, "model_not_found"), ("?what=1", 400, "unknown_parameter")],
)
def test_what_cannot_be_watched_is_refused(
    server: Served, query: str, status: int, code: str
) -> None:
    reply = server.client.get(f"/v1/live{query}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_a_model_that_loads_cannot_be_watched_yet() -> None:
    with serving(plain_config(), loaded=False) as served:
        reply = served.client.get("/v1/live?model=other-name")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_loading")


def test_a_frame_that_cannot_be_used_costs_nobody_but_those_who_look_on(server: Served) -> None:
    with watching(server) as events:
        begun(server, events)
        tell(server, LiveFrame(False, [NUM_BLOCKS, 5, 1], [], [], [], [], 0))
        tell(server, NO_CHANGE)
        assert server.complete(prompt="x", max_tokens=1).status_code == 200
        tell(server, whole(NUM_BLOCKS))
        assert next(events)["type"] == "picture"


def test_nothing_is_kept_while_nobody_looks_on(server: Served) -> None:
    tell(server, whole(NUM_BLOCKS))
    with watching(server) as events:
        assert next(events)["type"] == "engine"
        tell(server, NO_CHANGE)
        tell(server, whole(NUM_BLOCKS))
        assert next(events)["type"] == "picture"
