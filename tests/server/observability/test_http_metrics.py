"""Metrics of HTTP and of the processes: the names that dashboards of vLLM ask for."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from quire.server.app.apis import ROUTE_PATHS
from quire.server.app.middleware import OPEN_PATHS
from quire.server.config import ApiKey
from quire.server.observability.http_metric_table import HTTP_METRICS
from quire.server.observability.http_metrics import (
    METHODS,
    NO_HANDLER,
    HttpExchange,
    HttpMetrics,
)
from tests.server.served import MODEL, Served, eventually, plain_config, serving

HANDLERS = {*ROUTE_PATHS, NO_HANDLER}
PATHS = st.one_of(
    st.text(),
    st.sampled_from(sorted(ROUTE_PATHS)),
    st.builds(str.__add__, st.sampled_from(sorted(ROUTE_PATHS)), st.text()),
)
EXCHANGES = st.builds(
    HttpExchange,
    st.one_of(st.text(), st.sampled_from(sorted(METHODS))),
    PATHS,
    st.sampled_from([0, 200, 206, 400, 401, 404, 405, 499, 500, 503, 504]),
    st.floats(0, 1e6),
    st.integers(0, 2**64),
    st.integers(0, 2**40),
)


@given(st.lists(EXCHANGES))
def test_labels_are_few_whatever_clients_send(exchanges: list[HttpExchange]) -> None:
    metrics = HttpMetrics(ROUTE_PATHS)
    for each in exchanges:
        metrics.observe(each)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    text = generate_latest(registry).decode()
    total = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.get("handler", NO_HANDLER) in HANDLERS
            assert sample.labels.get("method", "other") in {*METHODS, "other"}
            assert sample.labels.get("status", "2xx") in {"2xx", "4xx", "5xx"}
            total += sample.value if sample.name == "http_requests_total" else 0
    assert total == len(exchanges)


def test_names_and_labels_are_those_of_the_instrumentator(served: Served) -> None:
    served.complete(prompt="x", max_tokens=1)
    assert eventually(lambda: "http_requests_total{" in served.client.get("/metrics").text)
    found = {
        sample.name: frozenset(sample.labels)
        for family in text_string_to_metric_families(served.client.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith("http_")
    }
    assert found == {
        "http_requests_total": {"method", "status", "handler"},
        "http_request_size_bytes_count": {"handler"},
        "http_request_size_bytes_sum": {"handler"},
        "http_response_size_bytes_count": {"handler"},
        "http_response_size_bytes_sum": {"handler"},
        "http_request_duration_highr_seconds_bucket": {"le"},
        "http_request_duration_highr_seconds_count": set(),
        "http_request_duration_highr_seconds_sum": set(),
        "http_request_duration_seconds_bucket": {"method", "handler", "le"},
        "http_request_duration_seconds_count": {"method", "handler"},
        "http_request_duration_seconds_sum": {"method", "handler"},
    }
    assert {name.partition("_seconds")[0].partition("_bytes")[0] for name in found} == {
        name.partition("_seconds")[0].partition("_bytes")[0] for name in HTTP_METRICS
    }


def test_requests_are_counted_by_route_and_status() -> None:
    config = replace(plain_config(), api_keys=(ApiKey("key"),))
    with serving(config) as served:
        assert served.complete(prompt="x").status_code == 401
        served.client.headers["authorization"] = "Bearer key"
        body = b'{"prompt": "x", "max_tokens": 1}'
        answer = served.client.post("/v1/completions", content=body)
        stream = served.complete(prompt="x", max_tokens=3, stream=True)
        assert (answer.status_code, stream.status_code) == (200, 200)
        served.client.get(f"/v1/models/{MODEL}")
        served.client.get("/v1/models/made/up")
        served.client.get("/made-up")
        served.client.delete("/v1/models")
        for path in OPEN_PATHS:
            served.client.get(path)
        assert eventually(lambda: served.metric("http_requests_total{") == 7)
        for labels, num in (
            ('handler="/v1/completions",method="POST",status="4xx"', 1),
            ('handler="/v1/completions",method="POST",status="2xx"', 2),
            ('handler="/v1/models/{name}",method="GET",status="2xx"', 1),
            ('handler="/v1/models/{name}",method="GET",status="4xx"', 1),
            ('handler="none",method="GET",status="4xx"', 1),
            ('handler="/v1/models",method="DELETE",status="4xx"', 1),
        ):
            assert served.metric(f"http_requests_total{{{labels}}}") == num
        of_completions = '{handler="/v1/completions"}'
        assert served.metric(f"http_request_size_bytes_count{of_completions}") == 3
        received = len(b'{"prompt":"x"}') + len(body) + len(stream.request.content)
        assert served.metric(f"http_request_size_bytes_sum{of_completions}") == received
        sent = served.metric(f"http_response_size_bytes_sum{of_completions}")
        assert sent > len(answer.content) + len(stream.content)
        assert served.metric("http_request_duration_highr_seconds_count") == 7
        posts = '{handler="/v1/completions",method="POST"}'
        assert served.metric(f"http_request_duration_seconds_count{posts}") == 3


def test_the_handler_is_the_route() -> None:
    handler_of = HttpMetrics(ROUTE_PATHS).handler_of
    assert handler_of("/v1/requests/a/b") == "/v1/requests/{name}"
    assert handler_of("/v1/models") == "/v1/models"
    assert handler_of("/") == "/"
    assert handler_of("/v1/modelsx") == handler_of("") == NO_HANDLER


def test_processes_are_told(served: Served) -> None:
    served.engine.process_id = 1
    for name in ("resident_memory_bytes", "cpu_seconds_total", "start_time_seconds"):
        assert served.metric(f"process_{name}") > 0
        assert served.metric(f"quire:engine_process_{name}") > 0
    assert served.metric("process_open_fds") < served.metric("process_max_fds")
    served.engine.process_id = None
    assert "quire:engine_process" not in served.client.get("/metrics").text


def test_the_longest_template_that_matches_is_the_route() -> None:
    handler_of = HttpMetrics(("/files/{name}", "/files/{name}/content")).handler_of
    assert handler_of("/files/a") == "/files/{name}"
    assert handler_of("/files/a/content") == "/files/{name}/content"
