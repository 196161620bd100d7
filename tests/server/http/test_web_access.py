"""Pages of other sites may not use a server without keys; programs and its own pages may."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.config import ApiKey, ServerConfig
from quire.server.http.host_names import exposure_warning, host_name, is_loopback
from tests.server.served import Served, plain_config, serving

BODY = {"prompt": "x"}
OPEN = "open"
NAMED = "named"
ANYONE = "anyone"
KEYED = "keyed"
WIDE = "wide"

CONFIGS: dict[str, ServerConfig] = {
    OPEN: plain_config(),
    NAMED: replace(
        plain_config(),
        allowed_origins=("https://chat.example", "null"),
        allowed_hosts=("api.example:80",),
        api_keys=(ApiKey("alpha"),),
    ),
    ANYONE: replace(plain_config(), allowed_origins=("*",), allowed_hosts=("*",)),
    KEYED: replace(plain_config(), api_keys=(ApiKey("alpha"),)),
    WIDE: replace(plain_config(), host="0.0.0.0"),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Served]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(serving(config)) for name, config in CONFIGS.items()}


def post(served: Served, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.client.post("/tokenize", json=BODY, headers={"x-api-key": "alpha", **named})


def refusal(reply: httpx.Response) -> str | None:
    if reply.status_code == 200:
        return None
    assert reply.status_code == 403
    error = reply.json()["error"]
    option = {"origin_not_allowed": "--allowed-origins", "host_not_allowed": "--allowed-hosts"}
    assert option[error["code"]] in error["message"]
    return str(error["code"])


ORIGIN, HOST = "origin_not_allowed", "host_not_allowed"


@pytest.mark.parametrize(
    ("name", "headers", "code"),
    [
        (OPEN, {}, None),
        (OPEN, {"origin": "https://evil.example"}, ORIGIN),
        (OPEN, {"origin": "null"}, ORIGIN),
        (OPEN, {"origin": "http://localhost:3000"}, ORIGIN),
        (OPEN, {"origin": "http://127.0.0.1", "host": "127.0.0.1:8000"}, ORIGIN),
        (OPEN, {"origin": "http://localhost:9000", "host": "localhost:9000"}, None),
        (OPEN, {"origin": "https://localhost", "host": "localhost"}, None),
        (OPEN, {"origin": "http://[::1]:80", "host": "[::1]"}, None),
        (OPEN, {"origin": "http://localhost:x", "host": "localhost"}, ORIGIN),
        (OPEN, {"origin": "http://localhost:x", "host": "localhost:x"}, HOST),
        (OPEN, {"origin": "app://localhost", "host": "localhost"}, ORIGIN),
        (OPEN, {"origin": "http://front.example", "sec_fetch_site": "same-origin"}, None),
        (OPEN, {"sec_fetch_site": "cross-site"}, ORIGIN),
        (OPEN, {"sec_fetch_site": "same-site"}, ORIGIN),
        (OPEN, {"sec_fetch_site": "none"}, None),
        (OPEN, {"origin": "http://evil.example", "host": "evil.example"}, HOST),
        (OPEN, {"host": "evil.example"}, HOST),
        (OPEN, {"host": "localhost.evil.example"}, HOST),
        (OPEN, {"host": "0.0.0.0"}, HOST),
        (OPEN, {"host": "my.localhost.:80"}, None),
        (OPEN, {"host": "127.9.9.9:1"}, None),
        (OPEN, {"host": ""}, None),
        (NAMED, {"origin": "https://chat.example", "host": "API.example"}, None),
        (NAMED, {"origin": "null", "host": "api.example:9999"}, None),
        (NAMED, {"origin": "http://chat.example"}, ORIGIN),
        (NAMED, {"host": "other.example"}, HOST),
        (ANYONE, {"origin": "https://evil.example", "host": "evil.example"}, None),
        (ANYONE, {"origin": "null", "sec_fetch_site": "cross-site"}, None),
        (KEYED, {"origin": "https://evil.example", "host": "evil.example"}, None),
        (WIDE, {"host": "10.0.0.7:8000"}, None),
        (WIDE, {"origin": "http://10.0.0.7:8000", "host": "10.0.0.7:8000"}, None),
        (WIDE, {"origin": "https://evil.example", "host": "10.0.0.7:8000"}, ORIGIN),
    ],
)
def test_who_may_call(
    servers: dict[str, Served], name: str, headers: dict[str, str], code: str | None
) -> None:
    assert refusal(post(servers[name], **headers)) == code


def test_a_refusal_is_counted_and_the_work_not_done(servers: dict[str, Served]) -> None:
    served = servers[OPEN]
    headers = {"origin": "https://evil.example"}
    reason = 'quire:http_refused_total{model_name="test-model",reason="origin_not_allowed"}'
    served.client.post("/v1/completions", json=BODY, headers=headers)
    before = served.metric(reason)
    reply = served.client.post("/v1/completions", json=BODY, headers=headers)
    assert reply.status_code == 403 and reply.headers["x-request-id"]
    assert served.metric(reason) == before + 1
    assert not served.engine.submitted


def test_probes_are_answered_under_any_name_and_pages_of_the_server_work(
    servers: dict[str, Served],
) -> None:
    client = servers[OPEN].client
    foreign = {"host": "pod-7.cluster", "origin": "https://evil.example"}
    for path in ("/livez", "/readyz", "/startupz", "/health"):
        assert client.get(path, headers=foreign).status_code == 200
    for path in ("/metrics", "/version", "/docs", "/openapi.json"):
        assert client.get(path, headers=foreign).status_code == 403
        assert client.get(path, headers={"sec-fetch-site": "cross-site"}).status_code == 200
        assert client.get(path, headers={"origin": "https://evil.example"}).status_code == 200
    assert client.get("/v1/models", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    assert client.get("/v1/models", headers={"origin": "https://a.example"}).status_code == 403


def preflight(served: Served, origin: str, method: str = "POST") -> httpx.Response:
    asked = "authorization,content-type,x-stainless-os"
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": asked,
    }
    return httpx.options(f"{served.url}/v1/chat/completions", headers=headers)


@pytest.mark.parametrize(
    ("name", "origin"), [(NAMED, "https://chat.example"), (ANYONE, "https://evil.example")]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_preflight_of_an_allowed_origin_needs_no_key(
    servers: dict[str, Served], name: str, origin: str, method: str
) -> None:
    reply = preflight(servers[name], origin, method)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] in (origin, "*")
    assert method in reply.headers["access-control-allow-methods"]
    assert "authorization" in reply.headers["access-control-allow-headers"].lower()
    assert "x-stainless-os" in reply.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize(("name", "status"), [(NAMED, 400), (OPEN, 403), (KEYED, 401), (WIDE, 403)])
def test_a_preflight_of_a_foreign_origin_is_refused(
    servers: dict[str, Served], name: str, status: int
) -> None:
    reply = preflight(servers[name], "https://evil.example")
    assert reply.status_code == status
    assert "access-control-allow-origin" not in reply.headers


def test_an_allowed_page_reads_answers_and_errors(servers: dict[str, Served]) -> None:
    client, origin = servers[NAMED].client, "https://chat.example"
    for key, status in (("alpha", 200), ("wrong", 401)):
        headers = {"origin": origin, "host": "api.example", "x-api-key": key}
        reply = client.post("/tokenize", json=BODY, headers=headers)
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == origin
        assert "origin" in reply.headers["vary"].lower()
        exposed = reply.headers["access-control-expose-headers"]
        assert {"x-request-id", "x-quire-ignored"} <= {*exposed.split(", ")}
    foreign = {"origin": "https://evil.example", "x-api-key": "alpha"}
    reply = client.post("/tokenize", json=BODY, headers=foreign)
    assert reply.status_code == 403 and "access-control-allow-origin" not in reply.headers


def test_answers_to_programs_have_no_headers_for_pages(servers: dict[str, Served]) -> None:
    reply = post(servers[NAMED])
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]


@given(st.integers(0, 2**24 - 1), st.integers(0, 65535), st.sampled_from(["", "::ffff:"]))
def test_all_of_127_is_loopback(low: int, port: int, mapped: str) -> None:
    address = f"{mapped}127.{low >> 16}.{low >> 8 & 255}.{low & 255}"
    host = f"[{address}]:{port}" if mapped else f"{address}:{port}"
    assert is_loopback(host_name(host))


@pytest.mark.parametrize("host", ["::1", "[::1]", "[::1]:80", "LOCALHOST.:1", "a.localhost"])
def test_names_of_loopback(host: str) -> None:
    assert is_loopback(host_name(host))


@pytest.mark.parametrize(
    "host", ["128.0.0.1", "[::2]:80", "::2", "localhost.com", "127.1.evil", "0.0.0.0", "[::1].evil"]
)
def test_others_are_not_loopback(host: str) -> None:
    assert not is_loopback(host_name(host))


def test_a_server_that_others_reach_without_a_key_says_so() -> None:
    assert exposure_warning(CONFIGS[OPEN]) is None
    assert exposure_warning(replace(CONFIGS[KEYED], host="0.0.0.0")) is None
    said = exposure_warning(CONFIGS[WIDE])
    assert said is not None and "--api-key-file" in said and "--allowed-hosts" in said
