"""Exposes the table of metrics with its values at `/metrics`, in the text formats of Prometheus and
OpenMetrics.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from quire.engine.messages import EngineFacts
from quire.scheduler.step import Stats
from quire.server.config import MetricsCompat, ServerConfig
from quire.server.observability.metric_table import METRICS, Metric, MetricKind
from quire.server.observability.metrics import BatchCounts, ServerMetrics
from quire.server.requests.input_reader import SizeClass

Rows: TypeAlias = list[tuple[tuple[str, ...], float]]
"""Pairs of label values (without the common ones) and the value of the series."""

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
ENGINE_INDEX = "0"


class MetricsCollector(Collector):
    """Collects the metrics of the table as Prometheus families, each once per prefix."""

    def __init__(
        self,
        config: ServerConfig,
        metrics: ServerMetrics,
        *,
        facts: Callable[[], EngineFacts | None],
        step_age_s: Callable[[], float],
        size_classes: Sequence[SizeClass],
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._facts = facts
        self._step_age_s = step_age_s
        self._size_classes = size_classes

    def collect(self) -> Iterator[Family]:
        rows = self._rows()
        twins = self._config.metrics_compat is MetricsCompat.VLLM
        for metric in METRICS:
            yield self._family("quire", metric, rows)
            if twins and metric.twin:
                yield self._family("vllm", metric, rows)

    def _family(self, prefix: str, metric: Metric, rows: Mapping[str, Rows]) -> Family:
        name = f"{prefix}:{metric.name}"
        labels = (*metric.common, *metric.labels)
        common = self._common(metric)
        if metric.kind is MetricKind.HISTOGRAM:
            family = HistogramMetricFamily(name, metric.help, labels=labels)
            histogram = self._metrics.histograms[metric.name]
            family.add_metric(common, histogram.exposed(), sum_value=histogram.total)
            return family
        kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        simple = kind(name, metric.help, labels=labels)
        for values, value in rows.get(metric.name, []):
            simple.add_metric((*common, *values), value)
        return simple

    def _common(self, metric: Metric) -> tuple[str, ...]:
        known = {"model_name": self._config.model_name, "engine": ENGINE_INDEX}
        return tuple(known[label] for label in metric.common)

    def _rows(self) -> dict[str, Rows]:
        rows = _stats_rows(self._metrics.stats)
        rows["request_success_total"] = _labelled(
            {str(reason): num for reason, num in self._metrics.num_finished.items()}
        )
        rows["admission_rejections_total"] = [
            (("max_num_queued_reqs",), self._metrics.num_rejected)
        ]
        rows["http_half_read_bytes"] = [((), self._metrics.num_half_read_bytes)]
        rows["reasoning_tokens_total"] = [((), self._metrics.num_reasoning_tokens)]
        rows["http_refused_total"] = _labelled(self._metrics.num_refused)
        rows["structured_requests_total"] = _labelled(self._metrics.num_structured)
        rows["tool_calls_total"] = [((end,), num) for end, num in self._metrics.num_calls.items()]
        rows["deadline_exceeded_total"] = [
            ((stage,), num) for stage, num in self._metrics.num_late.items()
        ]
        rows["traces_dropped_total"] = [
            ((reason,), num) for reason, num in self._metrics.dropped_traces.items()
        ]
        rows["tenant_tokens_total"] = [
            (labels, num) for labels, num in self._metrics.tenant_tokens.items()
        ]
        rows["event_loop_longest_hold_seconds"] = [((), self._metrics.longest_hold.value())]
        rows["input_bodies_waiting"] = _labelled(
            {size_class.name: size_class.queue.num_waiting for size_class in self._size_classes}
        )
        rows |= _batch_rows(self._metrics.batches)
        rows["last_step_age_seconds"] = [((), self._step_age_s())]
        facts = self._facts()
        if facts is not None:
            rows |= self._facts_rows(facts)
        return rows

    def _facts_rows(self, facts: EngineFacts) -> dict[str, Rows]:
        memory_config = self._config.engine.memory
        cache_config = (
            str(facts.block_size),
            str(facts.num_blocks),
            str(memory_config.enable_prefix_caching),
            str(memory_config.memory_share),
            facts.memory.kv_dtype,
        )
        memory = facts.memory
        return {
            "kv_cache_tokens": [((), memory.kv_tokens)],
            "kv_cache_max_concurrency": [((), memory.max_concurrency)],
            "max_model_len_fits": [((), memory.max_model_len_fits)],
            "cache_config_info": [(cache_config, 1.0)],
            "memory_bytes": [((line.kind,), float(line.num_bytes)) for line in facts.receipt],
            "startup_seconds": _labelled(facts.startup_s),
        }


def _batch_rows(counts: BatchCounts) -> dict[str, Rows]:
    return {
        "batches": _labelled(counts.num_batches),
        "batch_lines_total": _labelled(counts.num_lines),
        "batch_lines_running": [((), counts.num_running_lines)],
        "batch_file_bytes": [((), counts.num_file_bytes)],
    }


def _labelled(values: Mapping[str, int] | Mapping[str, float]) -> Rows:
    return [((str(label),), float(value)) for label, value in values.items()]


def _stats_rows(stats: Stats) -> dict[str, Rows]:
    return _request_rows(stats) | _block_rows(stats) | _prefix_rows(stats)


def _request_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of requests, and of the tokens that they took."""
    waiting = {
        "capacity": stats.num_waiting_for_capacity,
        "deferred": stats.num_waiting - stats.num_waiting_for_capacity,
    }
    return {
        "num_requests_running": [((), stats.num_running)],
        "num_requests_waiting": [((), stats.num_waiting)],
        "num_requests_waiting_by_reason": _labelled(waiting),
        "predicted_wait_seconds": [((), stats.predicted_wait_s)],
        "prompt_tokens_total": [((), stats.num_prompt_tokens)],
        "generation_tokens_total": [((), stats.num_generation_tokens)],
        "forced_tokens_total": [((), stats.num_forced_tokens)],
        "num_preemptions_total": [((), stats.num_preemptions)],
        "preemptions_total": [
            (("recompute", "blocks"), stats.num_preemptions - stats.num_swaps),
            (("swap", "blocks"), stats.num_swaps),
        ],
        "wasted_prefill_tokens_total": [((), stats.num_wasted_tokens)],
    }


def _block_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of KV blocks, and of their copies."""
    moved = {
        "out": stats.num_copied_out,
        "in": stats.num_copied_in,
        "copy": stats.num_copied_on_device,
    }
    return {
        "kv_cache_usage_perc": [((), stats.kv_usage)],
        "kv_blocks": _labelled(stats.blocks_by_state),
        "kv_blocks_moved_total": _labelled(moved),
    }


def _prefix_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of prefixes that were found, missed or waited for."""
    misses = {
        "too_short": stats.num_misses_too_short,
        "differs": stats.num_misses_differing,
        "evicted": stats.num_misses_evicted,
        "salt": stats.num_misses_by_salt,
        "new": stats.num_misses_new,
    }
    return {
        "prefix_cache_queries_total": [((), stats.num_prefix_queries)],
        "prefix_cache_hits_total": [((), stats.num_prefix_hits)],
        "prefix_cache_hit_rate": [((), stats.num_recent_hits / max(stats.num_recent_queries, 1))],
        "prefix_cache_misses_total": _labelled(misses),
        "prefix_waits_total": [((), stats.num_prefix_waits)],
        "prefix_cache_resets_total": [((), stats.num_resets)],
        "prompt_tokens_cached_total": [((), stats.num_prefix_hits + stats.num_forked_tokens)],
    }


class EngineProcess(Collector):
    """Collects the figures of the engine's process, as `process_*` has the server's; none while
    there is no such process."""

    def __init__(self, process_id: Callable[[], int | None]) -> None:
        self._process_id = process_id

    def collect(self) -> Iterable[PrometheusFamily]:
        process_id = self._process_id()
        if process_id is None:
            return []
        return ProcessCollector("quire:engine", pid=lambda: process_id, registry=None).collect()


def expose(collectors: Iterable[Collector], *, as_openmetrics: bool) -> bytes:
    """Return what all collectors have, in OpenMetrics or in Prometheus' own text format.

    UTF-8 is named for the colons of our names: the library's default for OpenMetrics makes them
    underscores, in samples alone. Names without other characters come out unquoted.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    if not as_openmetrics:
        return generate_latest(registry)
    escaping = openmetrics.ALLOWUTF8
    text: bytes = openmetrics.generate_latest(registry, escaping)  # type: ignore[no-untyped-call]
    return text
