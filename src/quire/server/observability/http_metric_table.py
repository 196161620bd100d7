"""The metrics of HTTP, which have vLLM's plain names alone."""

from collections.abc import Mapping

from quire.server.observability.metric import Metric, MetricKind


def _http(
    name: str, kind: MetricKind, help: str, *labels: str, buckets: tuple[float, ...] = ()
) -> tuple[str, Metric]:
    return name, Metric(name, kind, help, labels, common=(), buckets=buckets, twin=False)


HTTP_METRICS: Mapping[str, Metric] = dict(
    (
        _http(
            "http_requests_total",
            MetricKind.COUNTER,
            "Requests by method, status (2xx, 4xx ...) and route.",
            *("method", "status", "handler"),
        ),
        _http(
            "http_request_size_bytes",
            MetricKind.SUMMARY,
            "Bytes of request bodies, as declared.",
            "handler",
        ),
        _http(
            "http_response_size_bytes",
            MetricKind.SUMMARY,
            "Bytes of response bodies.",
            "handler",
        ),
        _http(
            "http_request_duration_highr_seconds",
            MetricKind.HISTOGRAM,
            "Time from a request to the end of its answer.",
            buckets=(
                *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
                *(4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
            ),
        ),
        _http(
            "http_request_duration_seconds",
            MetricKind.HISTOGRAM,
            "Time from a request to the end of its answer, by method and route.",
            *("method", "handler"),
            buckets=(0.1, 0.5, 1.0),
        ),
    )
)
"""Their names stand alone, without the common labels."""
