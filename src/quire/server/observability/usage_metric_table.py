"""The metrics of what API keys use, and of what all do together."""

from quire.server.observability.metric import Metric, MetricKind, counter

USAGE_METRICS: tuple[Metric, ...] = (
    counter(
        "recomputed_tokens_total",
        "Discarded computed tokens by cause: a preemption, or the end of an engine (restart).",
        "cause",
        twin=False,
    ),
    counter(
        "kv_block_seconds_total",
        "KV blocks times seconds: held on the device, or reserved for swapped requests on the "
        "host.",
        "memory",
        twin=False,
    ),
    counter(
        "queue_seconds_total",
        "Seconds of waiting in the engine, also after preemptions, summed over requests.",
        twin=False,
    ),
    counter(
        "tenant_tokens_total",
        "Tokens by API key: prompt, cached, output, and recomputed after a preemption (wasted) or "
        "the end of an engine (lost).",
        "tenant",
        "kind",
        twin=False,
    ),
    counter(
        "tenant_kv_block_seconds_total",
        "`kv_block_seconds_total` by API key; a shared block counts once, for its first holder.",
        "tenant",
        "memory",
        twin=False,
    ),
    counter(
        "tenant_queue_seconds_total", "`queue_seconds_total` by API key.", "tenant", twin=False
    ),
    counter(
        "tenant_requests_total",
        "`request_success_total` by API key, and refused requests: `queue_full`, and "
        "`deadline_refused`.",
        "tenant",
        "end",
        twin=False,
    ),
    Metric(
        "tenant_rate_limited_total",
        MetricKind.COUNTER,
        "`rate_limited_total` by API key.",
        ("tenant", "reason"),
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
)
