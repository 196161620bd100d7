"""Tells the load of the engine in a header, for balancers that ask for it: an ORCA load report
(github.com/cncf/xds, xds/data/orca/v3) of the metrics that vLLM puts into it.
"""

from collections.abc import Iterable

import msgspec

from quire.scheduler.step import Stats

FORMAT_HEADER = b"endpoint-load-metrics-format"
REPORT_HEADER = "endpoint-load-metrics"


def load_report(headers: Iterable[tuple[bytes, bytes]], stats: Stats) -> str | None:
    """Return the report in the format that the client asks for, `text` or `json`; else None."""
    format = dict(headers).get(FORMAT_HEADER, b"").lower()
    named = {
        "kv_cache_usage_perc": stats.kv_usage,
        "num_requests_waiting": float(stats.num_waiting),
    }
    if format == b"text":
        return "TEXT " + ", ".join(f"named_metrics.{name}={each}" for name, each in named.items())
    if format == b"json":
        return "JSON " + msgspec.json.encode({"named_metrics": named}).decode()
    return None
