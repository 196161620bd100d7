"""How loaded the engine is, in the answer's head, for balancers that ask there: an ORCA load report
(github.com/cncf/xds, xds/data/orca/v3) of the metrics that vLLM puts into it.
"""

from collections.abc import Iterable

import msgspec

from quire.scheduler.step import Stats

FORMAT_HEADER = b"endpoint-load-metrics-format"
REPORT_HEADER = "endpoint-load-metrics"


def load_report(headers: Iterable[tuple[bytes, bytes]], stats: Stats) -> str | None:
    """None: the client does not ask for one, or in no known format (`text` or `json`)."""
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
