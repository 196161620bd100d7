"""Keys, request ids, body limits: what surrounds every request."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from quire.logs import FIELDS
from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from tests.server.served import Served, eventually, plain_config, serving


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(
        replace(plain_config(), api_keys=(ApiKey("alpha"), ApiKey("bêta")), max_body_bytes=2000)
    ) as s:
        yield s


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "alpha"}, 401),
        ({"authorization": "Basic alpha"}, 401),
        ({"x-api-key": ""}, 401),
        ({"authorization": "Bearer alpha"}, 200),
        ({"authorization": "bearer alpha"}, 200),
        ({"x-api-key": "alpha"}, 200),
        ({"x-api-key": "alpha", "authorization": "Bearer alpha"}, 200),
        ({"x-api-key": "alpha", "authorization": "Bearer beta"}, 401),
    ],
)
def test_key_is_asked_for(guarded: Served, headers: dict[str, str], status: int) -> None:
    for path in ("/v1/models", "/v1/server_info"):
        reply = guarded.client.get(path, headers=headers)
        assert reply.status_code == status
    if status == 401:
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["x-request-id"]


def test_any_key_opens(guarded: Served) -> None:
    key = "Bearer bêta".encode()
    assert guarded.client.get("/v1/models", headers={b"authorization": key}).status_code == 200


def test_what_is_not_open_is_closed(guarded: Served) -> None:
    for path in ("/health", "/livez", "/readyz", "/startupz", "/metrics", "/version"):
        assert guarded.client.get(path).status_code == 200
    for path in ("/v1/completions", "/tokenize", "/detokenize", "/nope"):
        assert guarded.client.post(path, json={}).status_code == 401


def test_body_over_the_limit(guarded: Served) -> None:
    headers = {"authorization": "Bearer alpha"}
    for content in (b"x" * 2001, iter([b"x" * 1500, b"x" * 1500])):
        reply = guarded.client.post("/v1/completions", content=content, headers=headers)
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"abc-123", True),
        (b"x" * 128, True),
        (b"x" * 129, False),
        (b"has space", False),
        ("é".encode(), False),
        (b"", False),
    ],
)
def test_request_id_is_echoed_if_sane(served: Served, given: bytes, kept: bool) -> None:
    for method, path in (("GET", "/v1/models"), ("GET", "/nope"), ("POST", "/v1/completions")):
        reply = served.client.request(method, path, headers={b"x-request-id": given})
        told = reply.headers["x-request-id"].encode()
        assert (told == given) == kept
        assert told


def test_streams_carry_the_request_id(served: Served) -> None:
    reply = served.client.post(
        "/v1/completions",
        json={"prompt": "x", "stream": True},
        headers={"x-request-id": "stream-1"},
    )
    assert reply.headers["x-request-id"] == "stream-1"


def lines_of(name: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of one request, waited for: a line is written after its answer. Those of requests
    before the test may still come."""

    def found() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if message.startswith(f"{name} ")]

    assert eventually(lambda: bool(found()))
    return found()


def test_requests_are_logged_with_their_id(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="quire.access"):
        served.client.get("/readyz", headers={"x-request-id": "not-me"})
        served.client.get("/v1/models", headers={"x-request-id": "find-me"})
        (line,) = lines_of("find-me", caplog)
    assert line.startswith('find-me "GET /v1/models" 200')
    assert "not-me" not in caplog.text


def test_a_generation_is_logged_with_its_account(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="quire.access"):
        body = {"prompt": "secret words", "max_tokens": 4, "n": 2}
        served.client.post("/v1/completions", json=body, headers={"x-request-id": "with-tokens"})
        (line,) = lines_of("with-tokens", caplog)
    assert "model=test-model prompt_tokens=5 cached_tokens=3 " in line
    assert "output_tokens=8 queue_s=0.25 prefill_s=0.5 decode_s=0.75 finish=max_tokens" in line
    assert "secret" not in caplog.text


@pytest.mark.parametrize("prompt", ["secret words", ["a secret", "another secret"]])
def test_the_log_and_the_usage_count_the_same_cached_tokens(
    served: Served, caplog: pytest.LogCaptureFixture, prompt: object
) -> None:
    """More outputs of a prompt find what its first has computed: that is no cache of the prompt."""
    with caplog.at_level("INFO", logger="quire.access"):
        body = {"prompt": prompt, "max_tokens": 4, "n": 3}
        headers = {"x-request-id": f"cached-{type(prompt).__name__}"}
        reply = served.client.post("/v1/completions", json=body, headers=headers).json()
        (line,) = lines_of(headers["x-request-id"], caplog)
    num_cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert num_cached == (3 if isinstance(prompt, str) else 6)
    assert f" cached_tokens={num_cached} " in line


def refusal(code: str, field: str | None = None) -> str:
    return f" error_code={code}" + (f" error_field={field}" if field else "")


REFUSALS = [
    ("/v1/completions", {"prompt": "secret", "temperature": 9}, ("invalid_value", "temperature")),
    ("/v1/completions", {"prompt": "secret", "secret": 1}, ("unknown_parameter", None)),
    ("/v1/completions", {"prompt": "secret", "model": "secret"}, ("model_not_found", "model")),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "secret"}]}]},
        ("invalid_value", "messages[0].content[0].type"),
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "secret"}],
            "tool_choice": "required",
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "a", "parameters": {"properties": {"secret": 7}}},
                }
            ],
        },
        ("invalid_value", "tools[0].function.parameters"),
    ),
    (
        "/v1/messages",
        {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "secret"}]}]},
        ("unsupported_parameter", "messages[0].content[0].type"),
    ),
    (
        "/v1/responses",
        {"input": [{"type": "message", "role": "secret", "content": "a"}]},
        ("invalid_value", "input[0].role"),
    ),
    ("/v1/secret", {}, ("not_found", None)),
]


@pytest.mark.parametrize(("path", "body", "reason"), REFUSALS)
def test_a_refusal_leaves_its_reason_in_the_log(
    served: Served,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: object,
    reason: tuple[str, str | None],
) -> None:
    """The code and the field of the API, in text and as fields; no word of the request."""
    code, field = reason
    with caplog.at_level("INFO", logger="quire.access"):
        name = f"refused-{code}-{field}-{path.count('/')}"
        reply = served.client.post(path, json=body, headers={"x-request-id": name})
        (line,) = lines_of(name, caplog)
    assert reply.status_code >= 400, reply.text
    assert line.endswith(refusal(code, field)), line
    assert "secret" not in line.replace("/v1/secret", "")
    (record,) = [each for each in caplog.records if each.getMessage() == line]
    told = getattr(record, FIELDS)
    assert (told["error_code"], told.get("error_field")) == (code, field)


def test_refusals_before_any_route_leave_theirs_too(
    guarded: Served, caplog: pytest.LogCaptureFixture
) -> None:
    key = {"authorization": "Bearer alpha"}
    with caplog.at_level("INFO", logger="quire.access"):
        ids = [{"x-request-id": f"before-{number}"} for number in range(3)]
        guarded.client.get("/v1/models", headers=ids[0])
        guarded.client.post("/v1/completions", content=b"x" * 2001, headers=key | ids[1])
        guarded.client.get("/v1/models", headers=key | ids[2])
        lines = [lines_of(each["x-request-id"], caplog)[0] for each in ids]
    assert lines[0].endswith(refusal("invalid_api_key"))
    assert lines[1].endswith(refusal("request_too_large"))
    assert "error_code" not in lines[2]


def test_a_refusal_of_the_engine_leaves_its_reason(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.engine.refuses = Reason.OVER_SHARE
    with caplog.at_level("INFO", logger="quire.access"):
        headers = {"x-request-id": "over-share"}
        served.client.post("/v1/completions", json={"prompt": "secret"}, headers=headers)
        (line,) = lines_of("over-share", caplog)
    assert " 429 " in line and f"{refusal('rate_limit_exceeded')} " in f"{line} "


def test_a_stream_that_fails_leaves_its_reason(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.engine.script = lambda _: iter((100, 101, -1))
    with caplog.at_level("INFO", logger="quire.access"):
        body = {"prompt": "secret words", "stream": True}
        headers = {"x-request-id": "failing-stream"}
        served.client.post("/v1/completions", json=body, headers=headers)
        (line,) = lines_of("failing-stream", caplog)
    assert " 200 " in line and line.endswith(refusal("not_finite"))


def test_a_line_of_the_log_stays_one_line(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="quire.access"):
        headers = {"x-request-id": "one-line"}
        served.client.get("/v1/models/a%0aFAKE%1b[31m%00é", headers=headers)
        (line,) = lines_of("one-line", caplog)
    assert '"GET /v1/models/a%0AFAKE%1B%5B31m%00%C3%A9" 404' in line


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("text", "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting="),
        ("JSON", 'JSON {"named_metrics":{"kv_cache_usage_perc":0.0,"num_requests_waiting":'),
    ],
)
def test_a_balancer_is_told_the_load_where_it_asks(served: Served, wanted: str, told: str) -> None:
    """In every answer, a stream's and a refusal's too."""
    asked = {"endpoint-load-metrics-format": wanted}
    for path, body in (
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True}),
        ("/v1/chat/completions", {"messages": []}),
    ):
        reply = served.client.post(path, json=body, headers=asked)
        assert reply.headers["endpoint-load-metrics"].startswith(told)
        assert "endpoint-load-metrics" not in served.client.post(path, json=body).headers
    assert "endpoint-load-metrics" not in served.client.get("/v1/models", headers=asked).headers
