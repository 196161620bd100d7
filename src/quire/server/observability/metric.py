"""The declaration of one metric."""

from dataclasses import dataclass
from enum import StrEnum

COMMON_LABELS = ("model_name", "engine")
UP_TO_MODEL_LENGTH = ()
"""Buckets 1, 2, 5, 10, 20, 50 ... up to the model length, which is known once it is loaded."""


class MetricKind(StrEnum):
    """Prometheus types. A counter's name ends in `_total`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` come after the common ones, `model_name` and `engine`, or replace them. What is
    `of_server` a server has once, under the name of its first model; all else each model has."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    common: tuple[str, ...] = COMMON_LABELS
    buckets: tuple[float, ...] = UP_TO_MODEL_LENGTH
    twin: bool = True
    of_server: bool = False


def counter(
    name: str, help: str, *labels: str, twin: bool = True, of_server: bool = False
) -> Metric:
    """Return a counter; its name ends in `_total`."""
    return Metric(name, MetricKind.COUNTER, help, labels, twin=twin, of_server=of_server)


def gauge(name: str, help: str, *labels: str, twin: bool = True, of_server: bool = False) -> Metric:
    """Return a gauge."""
    return Metric(name, MetricKind.GAUGE, help, labels, twin=twin, of_server=of_server)


def histogram(
    name: str,
    help: str,
    buckets: tuple[float, ...],
    *,
    twin: bool = True,
    of_server: bool = False,
) -> Metric:
    """Return a histogram of these buckets."""
    kind = MetricKind.HISTOGRAM
    return Metric(name, kind, help, buckets=buckets, twin=twin, of_server=of_server)
