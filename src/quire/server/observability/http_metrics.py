"""Counts HTTP requests: the metrics of prometheus-fastapi-instrumentator, as vLLM has them.

Labels are the paths of routes and the common methods, never what a client made up, so that the
number of series is bounded. Paths that need no key are left out: probes and scrapes are no traffic.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from quire.server.observability.histogram import Histogram
from quire.server.observability.http_metric_table import HTTP_METRICS

HttpFamily: TypeAlias = CounterMetricFamily | SummaryMetricFamily | HistogramMetricFamily

NO_HANDLER = "none"
OTHER_METHOD = "other"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
CLIENT_GONE = 499
"""Stands for the status where the client went before the answer began; nginx calls it so."""


class HttpExchange(NamedTuple):
    """A request and its answer. `status` 0: the client went before the answer began."""

    method: str
    path: str
    status: int
    duration_s: float
    num_received: int
    num_sent: int


class HttpMetrics(Collector):
    """Collects the metrics of HTTP; each series begins with its first request.

    paths: those of all routes, as the document of the API writes them.
    """

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = frozenset(paths)
        templates = sorted((each for each in paths if "{" in each), key=_num_fixed, reverse=True)
        self._templates = tuple(
            (each.partition("{")[0], each.rpartition("}")[2], each) for each in templates
        )
        self._num_requests: dict[tuple[str, str, str], int] = {}
        self._received: dict[str, Histogram] = {}
        self._sent: dict[str, Histogram] = {}
        self._duration = Histogram(HTTP_METRICS["http_request_duration_highr_seconds"].buckets)
        self._durations: dict[tuple[str, ...], Histogram] = {}

    def observe(self, exchange: HttpExchange) -> None:
        handler = self.handler_of(exchange.path)
        method = exchange.method if exchange.method in METHODS else OTHER_METHOD
        status = f"{(exchange.status or CLIENT_GONE) // 100}xx"
        key = method, status, handler
        self._num_requests[key] = self._num_requests.get(key, 0) + 1
        self._received.setdefault(handler, Histogram(())).observe(exchange.num_received)
        self._sent.setdefault(handler, Histogram(())).observe(exchange.num_sent)
        self._duration.observe(exchange.duration_s)
        bounds = HTTP_METRICS["http_request_duration_seconds"].buckets
        self._durations.setdefault((method, handler), Histogram(bounds)).observe(
            exchange.duration_s
        )

    def handler_of(self, path: str) -> str:
        """Return the route's path as the document writes it; `none` where there is no route."""
        if path in self._paths:
            return path
        found = (
            template
            for prefix, suffix, template in self._templates
            if path.startswith(prefix) and path.endswith(suffix)
        )
        return next(found, NO_HANDLER)

    def collect(self) -> Iterator[HttpFamily]:
        metric = HTTP_METRICS["http_requests_total"]
        total = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, num in self._num_requests.items():
            total.add_metric(labels, num)
        yield total
        yield _summary("http_request_size_bytes", self._received)
        yield _summary("http_response_size_bytes", self._sent)
        yield _histogram("http_request_duration_highr_seconds", {(): self._duration})
        yield _histogram("http_request_duration_seconds", self._durations)


def _num_fixed(template: str) -> int:
    """Return how many characters of a template stand for themselves: of two that match a path, the
    one with more of them is meant."""
    return len(re.sub(r"{\w+}", "", template))


def _summary(name: str, sizes: Mapping[str, Histogram]) -> SummaryMetricFamily:
    metric = HTTP_METRICS[name]
    family = SummaryMetricFamily(name, metric.help, labels=metric.labels)
    for handler, size in sizes.items():
        ((_, count),) = size.cumulative()
        family.add_metric((handler,), count, size.total)
    return family


def _histogram(name: str, durations: Mapping[tuple[str, ...], Histogram]) -> HistogramMetricFamily:
    metric = HTTP_METRICS[name]
    family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
    for labels, duration in durations.items():
        family.add_metric(labels, duration.exposed(), sum_value=duration.total)
    return family
