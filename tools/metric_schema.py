"""The contract of the metrics as a file: every name that `/metrics` has of the tables, with type,
unit, labels, help and buckets. `make readme` writes it anew.
"""

import json

from quire.server.observability.http_metric_table import HTTP_METRICS
from quire.server.observability.metric import Metric, MetricKind
from quire.server.observability.metric_table import METRICS

FILE = "docs/metrics.json"
UNITS = ("seconds", "bytes", "tokens", "blocks", "requests")
RATIOS = ("perc", "rate")
ABOUT = (
    "Every metric of /metrics but those of the processes. Where `copy` is given, the same series "
    "have that name too, unless --metrics-compat is none. `buckets` of null are 1, 2, 5, 10, 20, "
    "50 ... up to the model length."
)


def metric_schema() -> str:
    """Return the whole file."""
    entries = [_entry(metric, prefix="quire:") for metric in METRICS]
    entries += [_entry(metric, prefix="") for metric in HTTP_METRICS.values()]
    return json.dumps({"about": ABOUT, "metrics": entries}, indent=1) + "\n"


def _entry(metric: Metric, *, prefix: str) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": prefix + metric.name,
        "type": metric.kind,
        "unit": _unit(metric.name),
        "labels": [*metric.common, *metric.labels],
        "help": metric.help,
    }
    if metric.twin:
        entry["copy"] = f"vllm:{metric.name}"
    if metric.kind is MetricKind.HISTOGRAM:
        entry["buckets"] = list(metric.buckets) or None
    return entry


def _unit(name: str) -> str:
    """Return the unit that a name ends in, or the last one that it speaks of; else `count`."""
    words = name.removesuffix("_total").split("_")
    if words[-1] in RATIOS:
        return "ratio"
    found = [word for word in words if word in UNITS]
    return found[-1] if found else "count"
