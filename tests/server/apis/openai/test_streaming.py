"""Streams: the same text as whole answers, usage, errors in the middle, clients that go away."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection

import httpx
import pytest

from quire.scheduler.reasons import Reason
from quire.server.text.tokenizer import TextTokenizer
from tests.server.served import Served, eventually, hold_after_first_token, plain_config, serving

JSON = {"Content-Type": "application/json"}
HELLO = [{"role": "user", "content": "Hello there"}]


def events(reply: httpx.Response) -> list[str]:
    """The data of each event; comment lines are left out."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in reply.text.split("\n\n") if not block.startswith(":")]
    assert blocks[-1] == ""
    return [block.removeprefix("data: ") for block in blocks[:-1]]


def chunks(reply: httpx.Response) -> list[dict[str, object]]:
    data = events(reply)
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def text_of(reply: httpx.Response, index: int = 0) -> str:
    choices = [c for chunk in (json.loads(e) for e in events(reply)[:-1]) for c in chunk["choices"]]
    return "".join(
        c["text"] if "text" in c else c["delta"].get("content", "")
        for c in choices
        if c["index"] == index
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "sweet prince", "max_tokens": 30},
        {"prompt": ["one", "two"], "n": 2, "max_tokens": 7},
        {"prompt": "a b c d", "max_tokens": 20, "stop": ["c d"]},
        {"prompt": "naïve café 😀", "max_tokens": 25},
        {"prompt": "my lord", "echo": True, "logprobs": 1, "max_tokens": 5},
        {"prompt": "my lord", "echo": True, "max_tokens": 5},
    ],
)
def test_stream_joined_is_the_whole_answer(served: Served, fields: dict[str, object]) -> None:
    whole = served.complete(**fields).json()
    stream = served.complete(**fields, stream=True)
    for choice in whole["choices"]:
        assert text_of(stream, choice["index"]) == choice["text"]
    ended = [
        (c["index"], c["finish_reason"], c["stop_reason"])
        for chunk in (json.loads(e) for e in events(stream)[:-1])
        for c in chunk["choices"]
        if c["finish_reason"]
    ]
    assert sorted(ended) == [
        (c["index"], c["finish_reason"], c["stop_reason"]) for c in whole["choices"]
    ]


def test_chat_stream_begins_with_the_role(served: Served) -> None:
    whole = served.chat(messages=HELLO, max_tokens=9).json()
    stream = served.chat(messages=HELLO, max_tokens=9, stream=True)
    first, *_, last = (json.loads(each) for each in events(stream)[:-1])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"content": "", "role": "assistant"}
    assert last["choices"][0]["finish_reason"] == "length"
    assert text_of(stream) == whole["choices"][0]["message"]["content"]
    assert "usage" not in first


def test_usage_comes_at_the_end(served: Served) -> None:
    whole = served.chat(messages=HELLO, max_tokens=9).json()
    stream = served.chat(
        messages=HELLO, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    *before, last = chunks(stream)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert "timings" in json.dumps(last["quire"])
    assert all(chunk["usage"] is None for chunk in before)


def test_the_end_of_each_choice_says_where_its_time_went(served: Served) -> None:
    for stream in (
        served.chat(messages=HELLO, max_tokens=3, n=2, stream=True),
        served.complete(prompt=["a b", "c"], max_tokens=3, stream=True),
    ):
        told = [json.loads(each) for each in events(stream)[:-1]]
        ends = [each for each in told if each["choices"][0]["finish_reason"]]
        assert len(ends) == 2
        for end in ends:
            (timing,) = end["quire"]["timings"]
            assert timing["index"] == end["choices"][0]["index"]
            assert timing["queue_s"] == 0.25
        assert stream.text.count('"timings"') == 2


def test_usage_can_come_with_every_chunk(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = served.complete(prompt="a b c", max_tokens=4, stream=True, stream_options=options)
    counts = [json.loads(e)["usage"]["completion_tokens"] for e in events(stream)[:-1]]
    assert counts == [1, 2, 3, 4, 4]


def test_half_characters_are_held_back(served: Served, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("😀é", add_special_tokens=False)
    assert len(ids) > 2
    served.engine.script = lambda request: iter(ids)
    stream = served.complete(prompt="x", max_tokens=len(ids), stream=True)
    assert text_of(stream) == "😀é"
    assert "\ufffd" not in stream.text
    served.engine.script = lambda request: iter(ids[:1])
    stream = served.complete(prompt="x", max_tokens=1, stream=True)
    assert text_of(stream) == "\ufffd"


def test_refusal_is_no_stream(served: Served) -> None:
    served.engine.refuses = Reason.QUEUE_FULL
    reply = served.complete(prompt="x", stream=True)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "server_overloaded"
    assert int(reply.headers["retry-after"]) > 0


def endless(served: Served) -> None:
    def script(_: object) -> Iterator[int]:
        while True:
            time.sleep(0.002)
            yield 100

    served.engine.script = script


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_client_that_goes_away_is_aborted(served: Served, stream: bool, n: int) -> None:
    hold_after_first_token(served)
    aborts = served.metric('quire:request_success_total{engine="0",finished_reason="abort"')
    body = {"prompt": "x", "max_tokens": 200, "n": n, "stream": stream}
    client = HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    client.request("POST", "/v1/completions", json.dumps(body), JSON)
    assert eventually(lambda: served.engine.num_unfinished == n)
    if stream:
        with client.getresponse() as reply:
            reply.readline()
    client.close()
    assert eventually(lambda: served.engine.num_unfinished == 0)
    served.do(served.engine.may_step.set)
    assert len(served.engine.aborted) == n
    after = served.metric('quire:request_success_total{engine="0",finished_reason="abort"')
    assert after == aborts + n
    assert served.metric('quire:kv_blocks{engine="0",model_name="test-model",state="active"}') == 0


def test_engine_death_in_mid_stream_is_an_event() -> None:
    with serving(plain_config()) as served:
        endless(served)
        body = {"prompt": "x", "max_tokens": 200, "stream": True}
        with served.client.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            assert next(lines).startswith("data: ")
            served.do(lambda: served.engine.die("killed by the test"))
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_down"
        assert "killed by the test" in error["message"]
        assert served.client.get("/readyz").status_code == 503
        assert served.client.get("/livez").status_code == 503
        assert served.complete(prompt="x").json()["error"]["code"] == "engine_down"
        assert served.client.get("/metrics").status_code == 200


def test_silent_stream_gets_comments() -> None:
    with serving(replace(plain_config(), sse_keep_alive_interval_s=0.05)) as served:
        served.do(served.engine.may_step.clear)
        body = {"prompt": "x", "max_tokens": 3, "stream": True}
        with served.client.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            assert next(lines) == ": keep-alive"
            served.do(served.engine.may_step.set)
            rest = list(lines)
        assert "data: [DONE]" in rest
