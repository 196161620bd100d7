"""`GET /v1/requests/{id}`: what happened to a request, for its own tenant, adding up exactly."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, to_builtins

from quire.engine.messages import EngineOutput
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, Sampling, Stopping
from quire.scheduler.step import NO_STATS, Delta, Finish
from quire.server.config import ApiKey
from quire.server.generation.context import Delivery, Prompt, RequestContext, TextOptions
from quire.server.observability.timeline_reasons import MEANINGS, TimelinePart
from quire.server.observability.timeline_view import TimelineOut, show, summary
from quire.server.observability.timelines import CHOICES_PER_REQUEST, Timelines
from quire.server.tenancy.tenants import IncomingRequest, Tenant
from tests.server.served import Served, eventually, plain_config, serving

ANN, BOB = ApiKey("key-of-ann", "ann"), ApiKey("key-of-bob", "bob")
SECONDS = st.floats(-10, 1000)
EVENTS = st.lists(st.builds(Event, SECONDS, st.sampled_from(Reason), st.integers(0, 50)))


def context(id: str = "cmpl-1", tenant: str = "ann", request_id: str = "req-1") -> RequestContext:
    request = NewRequest(id + "-0", (7, 8, 9), Sampling(), Stopping(max_tokens=5))
    return RequestContext(
        id=id,
        arrival=IncomingRequest(Tenant(tenant), request_id, arrived_s=100.0),
        created_s=5,
        model="m",
        prompts=(Prompt((7, 8, 9), "prompt"),),
        num_choices=1,
        num_returned=1,
        requests=(request,),
        text_options=TextOptions(),
        delivery=Delivery(),
    )


def report(*events: Event, of: str = "cmpl-1-0", deltas: tuple[Delta, ...] = ()) -> EngineOutput:
    return EngineOutput(1, 0, 0.0, (), (), deltas, NO_STATS, tuple((of, each) for each in events))


def account(*events: Event, of: str = "cmpl-1-0") -> EngineOutput:
    finish = Finish(events[-1].reason, 9, 3, 5, 2, 1, 0.0, 0.0, 0.0, events)
    return report(deltas=(Delta(of, (9,), finish=finish),))


def shown(*outputs: EngineOutput, submitted_s: float = 101.0, end_s: float = 110.0) -> TimelineOut:
    timelines = Timelines(5, are_apart=True)
    timeline = timelines.open(context(), submitted_s)
    for each in outputs:
        timelines.on_output(each)
    timeline.ended_s = end_s
    return show(timeline, now=end_s + 1)


def timed(targets: tuple[float | None, float | None], *, of: str = "cmpl-1") -> RequestContext:
    """A request with targets in seconds."""
    plain = context(of)
    new = replace(plain.requests[0], target_ttft_s=targets[0], target_itl_s=targets[1])
    return replace(plain, requests=(new,))


def test_targets_are_shown_with_what_came_of_them() -> None:
    timelines = Timelines(5, are_apart=True)
    timeline = timelines.open(timed((1.0, 0.05)), 101.0)
    asked = {"target_ttft_ms": 1000, "target_itl_ms": 50}
    nothing = {"ttft_ms": None, "itl_ms": None, "late_tokens": None}
    assert to_builtins(show(timeline, 101.5).latency) == asked | nothing
    queued, first = Event(101.0, Reason.QUEUED, 0), Event(102.5, Reason.FIRST_TOKEN, 0)
    timelines.on_output(report(queued, first, deltas=(Delta("cmpl-1-0", (1, 2, 3, 4)),)))
    runs = to_builtins(summary(timeline, 102.9).latency)
    assert runs == asked | {"ttft_ms": 1500, "itl_ms": 100, "late_tokens": None}
    ended = Event(104.5, Reason.MAX_TOKENS, 0)
    finish = Finish(Reason.MAX_TOKENS, 9, 3, 5, 2, 0, 0.5, 1.0, 2.0, (queued, first, ended), 3)
    timelines.on_output(report(deltas=(Delta("cmpl-1-0", (9,), finish=finish),)))
    timeline.ended_s = 105.0
    for shown_ in (show(timeline, 200.0), summary(timeline, 200.0)):
        latency = to_builtins(shown_.latency)
        assert latency == asked | {"ttft_ms": 1500, "itl_ms": 500, "late_tokens": 3}


def test_the_target_of_another_request_is_said_where_it_is_known() -> None:
    timelines = Timelines(5, are_apart=True)
    timelines.open(timed((None, 0.05), of="cmpl-2"), 100.5)
    timeline = timelines.open(context(), 101.0)
    timelines.on_output(report(Event(102.0, Reason.PACED, 64, "cmpl-2-0")))
    (told,) = show(timeline, 103.0, timelines.target_itl_ms).choices
    assert told.events[0].text == (
        "Computed in parts: prompts get 64 tokens of a step, so that cmpl-2-0 keeps its target "
        "of 50 ms."
    )
    assert show(timeline, 103.0).latency is UNSET


def test_every_reason_has_its_words() -> None:
    assert set(MEANINGS) == set(Reason)


@given(events=EVENTS, submitted_s=st.floats(100, 200), end_s=st.floats(100, 2000))
def test_parts_add_up_to_the_total(events: list[Event], submitted_s: float, end_s: float) -> None:
    told = shown(report(*events), submitted_s=submitted_s, end_s=end_s)
    (choice,) = told.choices
    assert set(choice.parts) == set(TimelinePart)
    assert min(choice.parts.values()) >= 0
    assert sum(choice.parts.values()) == told.total_ms == sum(reversed(choice.parts.values()))
    assert abs(told.total_ms - 1000 * (end_s - 100)) < 0.01


@given(events=EVENTS, submitted_s=st.floats(100, 200), end_s=st.floats(100, 2000))
def test_spans_follow_each_other_and_are_the_parts(
    events: list[Event], submitted_s: float, end_s: float
) -> None:
    told = shown(report(*events), submitted_s=submitted_s, end_s=end_s)
    (choice,) = told.choices
    spans = choice.spans
    borders = [0.0, *(span.end_ms for span in spans)]
    assert [span.start_ms for span in spans] == borders[:-1] and borders[-1] == told.total_ms
    assert all(span.start_ms < span.end_ms for span in spans)
    assert all(one.part != other.part for one, other in pairwise(spans))
    for part, ms in choice.parts.items():
        assert ms == sum(span.end_ms - span.start_ms for span in spans if span.part == part)


def test_parts_of_a_preempted_request() -> None:
    events = (
        Event(102, Reason.QUEUED, 4),
        Event(103, Reason.WAITS_FOR_BLOCKS, 2),
        Event(104, Reason.ADMITTED, 2),
        Event(104.5, Reason.FIRST_TOKEN, 0),
        Event(105, Reason.PREEMPTED_FOR_BLOCKS, 30),
        Event(106, Reason.RESUMED, 10),
        Event(108, Reason.MAX_TOKENS, 9),
    )
    told = shown(account(*events))
    (choice,) = told.choices
    assert choice.parts == {
        "received": 1000,
        "queued": 3000,
        "prefill": 500,
        "decode": 2500,
        "preempted": 1000,
        "delivered": 2000,
    }
    assert [(span.part, span.end_ms) for span in choice.spans] == [
        ("received", 1000),
        ("queued", 4000),
        ("prefill", 4500),
        ("decode", 5000),
        ("preempted", 6000),
        ("decode", 8000),
        ("delivered", 10000),
    ]
    counts = choice.counts
    assert (counts.prompt_tokens, counts.cached_tokens, counts.output_tokens) == (3, 2, 5)
    assert (counts.preemptions, counts.lost_tokens) == (1, 20)
    assert (told.state, choice.finish) == ("ended", "max_tokens")
    assert [(each.t_ms, each.event) for each in choice.events][1:3] == [
        (3000, "waits_for_blocks"),
        (4000, "admitted"),
    ]
    assert (choice.events[0].number, choice.events[0].meaning) == (4, "requests_ahead")


def test_the_last_word_is_the_engines_whole_account() -> None:
    early, late = Event(102, Reason.QUEUED, 0), Event(103, Reason.ABORTED, 9)
    (choice,) = shown(report(early, early), account(early, late)).choices
    assert [each.event for each in choice.events] == ["queued", "aborted"]


def test_a_number_without_a_meaning_is_not_told() -> None:
    """It may be a token of the prompt."""
    (choice,) = shown(account(Event(102, Reason.ABORTED, 9))).choices
    assert choice.events[0].number is UNSET


@pytest.mark.parametrize("are_apart", [False, True])
def test_others_are_not_told_of(are_apart: bool) -> None:
    timelines = Timelines(5, are_apart=are_apart)
    timelines.open(context("cmpl-2", "bob"), 101)
    timelines.open(context("cmpl-3", "ann"), 101)
    timeline = timelines.open(context("cmpl-1", "ann"), 101)
    events = [
        Event(102, Reason.MISS_SALT, 16),
        Event(102, Reason.MISS_DIFFERS, 19),
        *(Event(103, Reason.SWAPPED_OUT, 1, f"cmpl-{n}-0") for n in (2, 3, 9)),
    ]
    timelines.on_output(report(*events))
    (choice,) = show(timeline, 104).choices
    misses = [(each.event, each.number) for each in choice.events[:2]]
    others = [each.other for each in choice.events[2:]]
    if are_apart:
        assert misses == [("miss_new", UNSET), ("miss_differs", 19)]
        assert others == ["another tenant", "cmpl-3-0", "another tenant"]
    else:
        assert misses == [("miss_salt", 16), ("miss_differs", 19)]
        assert others == ["cmpl-2-0", "cmpl-3-0", "cmpl-9-0"]


@given(
    max_timelines=st.integers(0, 4),
    names=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=10),
)
def test_the_newest_are_kept(max_timelines: int, names: list[tuple[str, str]]) -> None:
    timelines = Timelines(max_timelines, are_apart=True)
    opened = [
        timelines.open(context(f"id-{index}", tenant, request_id), 101)
        for index, (tenant, request_id) in enumerate(names)
    ]
    kept = opened[len(opened) - min(max_timelines, len(opened)) :]
    for index, timeline in enumerate(opened):
        found = timelines.find(timeline.tenant, f"id-{index}")
        assert found is (timeline if timeline in kept else None)
    for tenant in "ab":
        for request_id in "xyz":
            owned = [each for each in kept if each.names[1] == (tenant, request_id)]
            assert timelines.find(tenant, request_id) is (owned[-1] if owned else None)


def test_fewer_are_kept_where_they_have_many_choices() -> None:
    timelines = Timelines(4, are_apart=True)
    first = timelines.open(context("first"), 101)
    request = NewRequest("many", (1,), Sampling(), Stopping(max_tokens=5))
    choices = tuple(replace(request, id=f"many-{n}") for n in range(4 * CHOICES_PER_REQUEST))
    many = timelines.open(replace(context("many"), requests=choices), 101)
    assert timelines.find(first.tenant, "first") is None
    assert timelines.find(many.tenant, "many") is many
    last = timelines.open(context("last"), 101)
    assert timelines.find(many.tenant, "many") is None
    assert timelines.find(last.tenant, "last") is last


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(replace(plain_config(), api_keys=(ANN, BOB), timeline_requests=3)) as served:
        yield served


def ask(served: Served, key: ApiKey, method: str, path: str, **rest: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key.key}", "x-request-id": f"of-{key.name}"}
    return served.client.request(method, path, json=rest or None, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
def test_an_ended_request_is_told_to_its_tenant_alone(guarded: Served, stream: bool) -> None:
    reply = ask(guarded, ANN, "POST", "/v1/completions", prompt=[5, 777], n=2, stream=stream)
    assert reply.status_code == 200
    job_id = guarded.engine.submitted[-1].id.rpartition("-")[0]
    assert job_id in reply.text
    for name in (job_id, "of-ann"):
        wait_ended(guarded, name)
        body = ask(guarded, ANN, "GET", f"/v1/requests/{name}").json()
        assert (body["object"], body["id"], body["model"]) == (
            "request.timeline",
            job_id,
            "test-model",
        )
        for index, choice in enumerate(body["choices"]):
            assert choice["index"] == index
            assert sum(choice["parts"].values()) == body["total_ms"]
            names = [event["event"] for event in choice["events"]]
            assert names == ["queued", "admitted", "first_token", "max_tokens"]
            assert choice["counts"]["output_tokens"] == 16
        hidden = ask(guarded, BOB, "GET", f"/v1/requests/{name}")
        assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "request_not_found")


def wait_ended(served: Served, name: str) -> None:
    """The client may have its answer a moment before the server is done with it."""

    def ended() -> bool:
        body = ask(served, ANN, "GET", f"/v1/requests/{name}").json()
        return bool(body["state"] == "ended")

    assert eventually(ended)


def test_a_live_request_is_told_as_its_events_come(guarded: Served) -> None:
    guarded.do(guarded.engine.may_step.clear)
    thread = threading.Thread(
        target=ask, args=(guarded, BOB, "POST", "/v1/completions"), kwargs={"prompt": "x"}
    )
    thread.start()
    assert eventually(lambda: guarded.engine.num_unfinished == 1)
    request = guarded.engine.submitted[-1]
    waits = Event(time.monotonic(), Reason.WAITS_FOR_SEQUENCE, 64)
    guarded.do(lambda: guarded.engine.tell(events=((request.id, waits),)))
    body = ask(guarded, BOB, "GET", "/v1/requests/of-bob").json()
    guarded.do(guarded.engine.may_step.set)
    thread.join(10)
    (choice,) = body["choices"]
    assert (body["state"], choice["finish"]) == ("live", None)
    assert [event["event"] for event in choice["events"]] == ["queued", "waits_for_sequence"]
    assert choice["events"][1]["meaning"] == "requests_running"
    assert choice["counts"]["prompt_tokens"] == len(request.prompt_token_ids)
    assert choice["parts"]["queued"] > 0


def test_a_refused_request_says_why(guarded: Served) -> None:
    guarded.engine.refuses = Reason.QUEUE_FULL
    reply = ask(guarded, BOB, "POST", "/v1/completions", prompt="x")
    guarded.engine.refuses = None
    assert reply.status_code == 503
    body = ask(guarded, BOB, "GET", "/v1/requests/of-bob").json()
    assert (body["state"], body["refused"]) == ("refused", "queue_full")


def test_timelines_can_be_off() -> None:
    with serving(replace(plain_config(), timeline_requests=0)) as served:
        job_id = served.complete(prompt="x").json()["id"]
        reply = served.client.get(f"/v1/requests/{job_id}")
    assert reply.status_code == 404
    assert "--timeline-requests" in reply.json()["error"]["message"]


def test_a_list_has_ones_own_requests_alone() -> None:
    config = replace(plain_config(), api_keys=(ANN, BOB))
    with serving(config) as served:
        heads = [{"authorization": f"Bearer {each.key}"} for each in (ANN, BOB)]
        for index, head in enumerate([heads[0], heads[1], heads[0]]):
            said = {"prompt": "x", "max_tokens": index + 1}
            served.client.post(
                "/v1/completions", json=said, headers=head | {"x-request-id": f"req-{index}"}
            ).raise_for_status()
        ann, bob = (served.client.get("/v1/requests", headers=each).json() for each in heads)
        assert [each["request_id"] for each in ann["data"]] == ["req-2", "req-0"]
        assert [each["output_tokens"] for each in ann["data"]] == [3, 1]
        (of_bob,) = bob["data"]
        assert (of_bob["state"], of_bob["choices"]) == ("ended", 1)
        timeline = served.client.get(f"/v1/requests/{of_bob['id']}", headers=heads[1]).json()
        assert timeline["total_ms"] == of_bob["total_ms"]
