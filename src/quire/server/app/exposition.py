"""Exposes the table of metrics with its values at `/metrics`, in the text formats of Prometheus and
OpenMetrics.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from quire.engine.config import MemoryConfig
from quire.engine.messages import EngineFacts
from quire.scheduler.step import Stats, StepFailure, StepLaunch
from quire.server.config import MetricsCompat
from quire.server.generation.service import Service
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.observability.histogram import Histogram
from quire.server.observability.metric import Metric, MetricKind
from quire.server.observability.metric_table import METRICS
from quire.server.observability.metrics import BatchCounts, ResponseCounts
from quire.server.tenancy.usage_accounts import RequestEnd
from quire.server.tenancy.usage_rows import rate_rows, usage_rows
from quire.storage.disk.counts import DiskStats
from quire.storage.network.counts import TransferStats

Rows: TypeAlias = list[tuple[tuple[str, ...], float]]
"""Pairs of label values (without the common ones) and the value of the series."""

Label = TypeVar("Label", bound=str)
Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
ENGINE_INDEX = "0"


class MetricsCollector(Collector):
    """Collects the metrics of the table as Prometheus families, each once per prefix."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Family]:
        service = self._service
        models = [
            series
            for model in service.models
            for series in _model_series(model, service.tenants.names)
        ]
        of_server = Series(
            service.default_model.name, service.metrics.histograms, _server_rows(service)
        )
        twins = service.config.metrics_compat is MetricsCompat.VLLM
        for metric in METRICS:
            all_series = [of_server] if metric.of_server else models
            yield _family("quire", metric, all_series)
            if twins and metric.twin:
                yield _family("vllm", metric, all_series)


class Series(NamedTuple):
    """The values that are exposed under the name of one model, and of one engine of it."""

    model_name: str
    histograms: Mapping[str, Histogram]
    rows: Mapping[str, Rows]
    engine: str = ENGINE_INDEX


def _model_series(model: ServedModel, named: Sequence[str]) -> Iterator[Series]:
    """Yield the values of a model; what its engines count those of each, where there are
    replicas."""
    rows = _model_rows(model, named)
    for replica, stats in sorted(model.engine.stats_by_replica.items()):
        of_replica = _stats_rows(stats)
        yield Series(model.name, {}, of_replica, replica)
        rows = {name: row for name, row in rows.items() if name not in of_replica}
    yield Series(model.name, model.metrics.histograms, rows)


def _family(prefix: str, metric: Metric, all_series: Iterable[Series]) -> Family:
    name = f"{prefix}:{metric.name}"
    labels = (*metric.common, *metric.labels)
    if metric.kind is MetricKind.HISTOGRAM:
        family = HistogramMetricFamily(name, metric.help, labels=labels)
        for series in all_series:
            histogram = series.histograms.get(metric.name)
            if histogram is None:
                continue
            common = _common(metric, series)
            family.add_metric(common, histogram.exposed(), sum_value=histogram.total)
        return family
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    simple = kind(name, metric.help, labels=labels)
    for series in all_series:
        for values, value in series.rows.get(metric.name, []):
            simple.add_metric((*_common(metric, series), *values), value)
    return simple


def _common(metric: Metric, series: Series) -> tuple[str, ...]:
    known = {"model_name": series.model_name, "engine": series.engine}
    return tuple(known[label] for label in metric.common)


def _server_rows(service: Service) -> dict[str, Rows]:
    metrics = service.metrics
    return {
        "http_half_read_bytes": [((), metrics.num_half_read_bytes)],
        "http_refused_total": _labelled(metrics.num_refused),
        "traces_dropped_total": _labelled(metrics.dropped_traces),
        "event_loop_longest_hold_seconds": [((), metrics.longest_hold.value())],
        "input_bodies_waiting": _labelled(
            {each.name: each.queue.num_waiting for each in service.inputs.size_classes}
        ),
        **_batch_rows(metrics.batches),
        **_response_rows(metrics.responses),
        **rate_rows(metrics.rate_accounts, service.tenants.names),
    }


def _model_rows(model: ServedModel, named: Sequence[str]) -> dict[str, Rows]:
    """Return the rows of one model; `named` are the tenants with labels of their own."""
    metrics = model.metrics
    num_rejected = metrics.accounts.num_ended(RequestEnd.QUEUE_FULL)
    rows = _stats_rows(metrics.stats) | usage_rows(metrics.accounts, named)
    rows |= {
        "engine_restarts_total": _labelled(metrics.num_restarts),
        "requests_resumed_total": [((), metrics.num_resumed)],
        "requests_quarantined_total": [((), metrics.num_quarantined)],
        "flight_records_written_total": _labelled(metrics.flight_records.written),
        "flight_records_failed_total": _labelled(metrics.flight_records.failed),
        "engine_restarting": [((), model.is_restarting)],
        "request_success_total": _labelled(metrics.num_finished),
        "admission_rejections_total": [(("max_num_queued_reqs",), num_rejected)],
        "pooled_prompts_total": [((), metrics.num_pooled_prompts)],
        "reasoning_tokens_total": [((), metrics.num_reasoning_tokens)],
        "structured_requests_total": _labelled(metrics.num_structured),
        "requests_with_ignored_total": _labelled(metrics.num_with_ignored),
        "grammar_failures_total": [((), metrics.num_grammar_failed)],
        "loosened_outputs_total": _labelled(metrics.num_loosened_outputs),
        "tool_calls_total": _labelled(metrics.num_calls),
        "deadline_exceeded_total": _labelled(metrics.num_late),
        "last_step_age_seconds": [((), model.engine.last_progress_age_s())],
        "pinned_prefixes": _labelled(model.prefixes.num_by_state),
        "live_watchers": [((), model.live.num_watchers)],
        "live_events_skipped_total": [((), model.live.num_skipped)],
    }
    lifecycle, counts = model.lifecycle, model.lifecycle.counts
    rows["model_state"] = [((state,), float(state is model.state)) for state in ModelState]
    rows["model_loads_total"] = _labelled(counts.loads)
    rows["model_unloads_total"] = _labelled(counts.unloads)
    rows["requests_waiting_for_load"] = [((), lifecycle.num_waiting)]
    rows |= _disk_rows(metrics.disk) | _transfer_rows(metrics.transfer)
    if model.facts is not None:
        rows |= _facts_rows(model.facts, model.config.engine.memory)
    return rows


def _facts_rows(facts: EngineFacts, config: MemoryConfig) -> dict[str, Rows]:
    cache_config = (
        str(facts.block_size),
        str(facts.num_blocks),
        str(config.enable_prefix_caching),
        str(config.memory_share),
        facts.memory.kv_dtype,
    )
    memory = facts.memory
    return {
        "engine_ranks": [((), facts.num_ranks)],
        "kv_cache_tokens": [((), memory.kv_tokens)],
        "kv_cache_passed_token_bytes": [
            (("kept",), memory.passed_token_bytes),
            (("unseen",), memory.unseen_token_bytes),
        ],
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


def _response_rows(counts: ResponseCounts) -> dict[str, Rows]:
    return {
        "stored_responses": [((), counts.num_stored)],
        "stored_response_bytes": [((), counts.num_bytes)],
        "stored_responses_evicted_total": _labelled(counts.num_evicted),
    }


def _labelled(values: Mapping[Label, int] | Mapping[Label, float]) -> Rows:
    return [((str(label),), float(value)) for label, value in values.items()]


def _stats_rows(stats: Stats) -> dict[str, Rows]:
    rows = _request_rows(stats) | _target_rows(stats)
    return rows | _block_rows(stats) | _prefix_rows(stats) | _session_rows(stats)


def _request_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of requests, and of the tokens that they took."""
    waiting = {
        "capacity": stats.num_waiting_for_capacity,
        "deferred": stats.num_waiting - stats.num_waiting_for_capacity,
    }
    num_recomputed = stats.num_preemptions - stats.num_swaps
    num_urgent = stats.num_urgent_preemptions - stats.num_urgent_swaps
    return {
        "num_requests_running": [((), stats.num_running)],
        "num_requests_waiting": [((), stats.num_waiting)],
        "num_requests_waiting_by_reason": _labelled(waiting),
        "predicted_wait_seconds": [((), stats.predicted_wait_s)],
        "requests_let_by_total": [((), stats.num_let_by)],
        "prompt_tokens_total": [((), stats.num_prompt_tokens)],
        "generation_tokens_total": [((), stats.num_generation_tokens)],
        "forced_tokens_total": [((), stats.num_forced_tokens)],
        "num_preemptions_total": [((), stats.num_preemptions)],
        "preemptions_total": [
            (("recompute", "blocks"), num_recomputed - num_urgent),
            (("swap", "blocks"), stats.num_swaps - stats.num_urgent_swaps),
            (("recompute", "urgent"), num_urgent),
            (("swap", "urgent"), stats.num_urgent_swaps),
        ],
        "wasted_prefill_tokens_total": [((), stats.num_wasted_tokens)],
        "recomputed_tokens_total": [
            (("preemption",), stats.num_wasted_tokens - stats.num_lost_tokens),
            (("restart",), stats.num_lost_tokens),
        ],
        "failed_steps_total": [
            ((StepFailure.OUT_OF_MEMORY,), stats.num_steps_out_of_memory),
            ((StepFailure.ERROR,), stats.num_steps_with_errors),
        ],
        "steps_total": [
            ((StepLaunch.NONE,), stats.num_steps_launched),
            ((StepLaunch.PIECEWISE,), stats.num_steps_piecewise),
            ((StepLaunch.FULL,), stats.num_steps_full),
        ],
    }


def _target_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of latency targets."""
    met = {"ttft": stats.num_ttft_met, "itl": stats.num_itl_met}
    missed = {"ttft": stats.num_ttft_missed, "itl": stats.num_itl_missed}
    return {
        "slo_attained_total": _labelled(met),
        "slo_missed_total": _labelled(missed),
        "slo_foreseen_total": _labelled({"ttft": stats.num_ttft_foreseen}),
        "step_time_error": [((), stats.step_time_error)],
    }


def _session_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of sessions, and of what is kept for them."""
    num_not_kept = stats.num_turns - stats.num_turns_kept
    turns = {"kept": stats.num_turns_kept, "not_kept": num_not_kept}
    dropped = {"expired": stats.num_kept_expired, "crowded_out": stats.num_kept_crowded_out}
    return {
        "kv_blocks_kept": [((), stats.num_blocks_kept)],
        "session_turns_total": _labelled(turns),
        "session_blocks_dropped_total": _labelled(dropped),
        "session_waits_total": [((), stats.num_held_for_sessions)],
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
        "recurrent_states": _labelled(stats.states_by_use),
        "recurrent_states_moved_total": _labelled(
            {"out": stats.num_state_copies_out, "in": stats.num_state_copies_in}
        ),
        "kv_blocks_moved_total": _labelled(moved),
    }


def _prefix_rows(stats: Stats) -> dict[str, Rows]:
    """Return what tells of prefixes that were found, missed or waited for."""
    misses = {
        "too_short": stats.num_misses_too_short,
        "differs": stats.num_misses_differing,
        "evicted": stats.num_misses_evicted,
        "salt": stats.num_misses_by_salt,
        "state": stats.num_misses_without_state,
        "new": stats.num_misses_new,
    }
    num_elsewhere = stats.num_host_hits + stats.num_disk_hits + stats.num_peer_hits
    sources = {
        "device": stats.num_prefix_hits + stats.num_forked_tokens - num_elsewhere,
        "host": stats.num_host_hits,
        "disk": stats.num_disk_hits,
        "peer": stats.num_peer_hits,
    }
    return {
        "prefix_cache_queries_total": [((), stats.num_prefix_queries)],
        "prefix_cache_hits_total": [((), stats.num_prefix_hits)],
        "prefix_cache_hit_rate": [((), stats.num_recent_hits / max(stats.num_recent_queries, 1))],
        "prefix_cache_misses_total": _labelled(misses),
        "prompt_tokens_without_state_total": [((), stats.num_tokens_without_state)],
        "prefix_waits_total": [((), stats.num_prefix_waits)],
        "prefix_cache_resets_total": [((), stats.num_resets)],
        "prompt_tokens_cached_total": [((), sum(sources.values()))],
        "prompt_tokens_cached_by_source_total": _labelled(sources),
    }


def _disk_rows(disk: DiskStats) -> dict[str, Rows]:
    """Return what tells of the prefix cache on disk."""
    blocks = {
        "written": disk.num_written,
        "read": disk.num_read,
        "dropped": disk.num_dropped,
        "failed": disk.num_failed,
        "corrupt": disk.num_corrupt,
        "evicted": disk.num_evicted,
    }
    lookups = {
        "hit": disk.num_hits,
        "declined": disk.num_declined,
        "miss": disk.num_misses,
    }
    return {
        "prefix_disk_held_blocks": [((), disk.num_blocks)],
        "prefix_disk_held_bytes": [((), disk.num_bytes)],
        "prefix_disk_paused": [((), disk.is_paused)],
        "prefix_disk_lookups_total": _labelled(lookups),
        "prefix_disk_blocks_total": _labelled(blocks),
        "prefix_disk_loaded_tokens_total": [((), disk.num_loaded_tokens)],
        "prefix_disk_moved_bytes_total": _labelled(
            {"read": disk.read_bytes, "write": disk.written_bytes}
        ),
        "prefix_disk_seconds_total": _labelled({"read": disk.read_s, "write": disk.write_s}),
    }


def _transfer_rows(transfer: TransferStats) -> dict[str, Rows]:
    """Return what tells of blocks that engines send each other."""
    peers = {
        "connected": transfer.num_connected,
        "lost": transfer.num_peers - transfer.num_connected,
    }
    lookups = {
        "hit": transfer.num_hits,
        "declined": transfer.num_declined,
        "miss": transfer.num_misses,
    }
    blocks = {
        "received": transfer.num_received,
        "gone": transfer.num_gone,
        "corrupt": transfer.num_corrupt,
        "sent": transfer.num_sent,
    }
    return {
        "kv_transfer_peers": _labelled(peers),
        "kv_transfer_offered_blocks": [((), transfer.num_offered_blocks)],
        "kv_transfer_connections": [((), transfer.num_asking)],
        "kv_transfer_lookups_total": _labelled(lookups),
        "kv_transfer_blocks_total": _labelled(blocks),
        "kv_transfer_loaded_tokens_total": [((), transfer.num_loaded_tokens)],
        "kv_transfer_bytes_total": _labelled(
            {"receive": transfer.received_bytes, "send": transfer.sent_bytes}
        ),
        "kv_transfer_seconds_total": _labelled(
            {"receive": transfer.receive_s, "send": transfer.send_s}
        ),
        "kv_transfer_failures_total": _labelled(
            {"broken": transfer.num_failed, "refused": transfer.num_refused}
        ),
    }


class EngineProcesses(Collector):
    """Collects the figures of the engines' processes and of the one that stands by, as `process_*`
    has the server's; none while there is no such process. Where there are several models each
    figure has the name of its own, and where a model has several engines the number of its own."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[PrometheusFamily]:
        models = self._service.models
        families: dict[str, PrometheusFamily] = {}
        for model in models:
            of_model = {"model_name": model.name} if len(models) > 1 else {}
            processes = model.engine.processes
            for index, process in enumerate(processes):
                labels = of_model | ({"engine": str(index)} if len(processes) > 1 else {})
                for family in _process_figures(process.process_id):
                    kept = families.setdefault(family.name, family)
                    labelled = [
                        each._replace(labels=each.labels | labels) for each in family.samples
                    ]
                    kept.samples = labelled if kept is family else kept.samples + labelled
        standby = _process_figures(models[0].engine.standby_id, "quire:engine_standby")
        return (*families.values(), *standby)


def _process_figures(
    process_id: int | None, name: str = "quire:engine"
) -> Iterable[PrometheusFamily]:
    if process_id is None:
        return []
    return ProcessCollector(name, pid=lambda: process_id, registry=None).collect()


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
