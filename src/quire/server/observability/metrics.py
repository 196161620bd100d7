"""Counts for the metrics: from the engine's reports, and from requests on their way through the
server.

Counters that the engine keeps are shown as its newest report has them, so that an abort, whose end
no stream sees, is counted right too.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from quire.engine.messages import EngineFacts, EngineOutput
from quire.engines.process.end_cause import EndCause
from quire.scheduler.request import NewRequest
from quire.scheduler.step import GAUGES, NO_STATS, Finish, Stats
from quire.server.observability.flight_record_counts import FlightRecordCounts
from quire.server.observability.histogram import Histogram
from quire.server.observability.http_metrics import HttpMetrics
from quire.server.observability.loop_lag import RecentMaximum
from quire.server.observability.metric import UP_TO_MODEL_LENGTH, MetricKind
from quire.server.observability.metric_table import METRICS, buckets_up_to
from quire.server.observability.request_spans import SpanDropReason
from quire.server.tenancy.tenants import IncomingRequest
from quire.server.tenancy.usage_accounts import ModelAccounts, RateAccounts, RequestEnd
from quire.storage.disk.counts import NO_DISK, DiskStats
from quire.storage.network.counts import NO_TRANSFER, TransferStats


def _added(before: Stats, stats: Stats) -> Stats:
    """Return `stats` with what engines before it counted added to what it counts."""
    counts = {
        name: int(past + value)
        for name, past, value in zip(Stats._fields, before, stats, strict=True)
        if name not in GAUGES
    }
    return stats._replace(**counts)


class FinishReason(StrEnum):
    """vLLM's reasons why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class DeadlineMiss(StrEnum):
    """The effects of a missed deadline: the request was not taken, or its output is not
    complete."""

    REFUSED = "refused"
    UNFINISHED = "unfinished"


@dataclass(slots=True)
class BatchCounts:
    """Counts of batches: by state, lines by how their run ended, lines that run, and the bytes of
    the files that are kept."""

    num_batches: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("running", "waiting"), 0)
    )
    num_lines: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("completed", "failed", "put_back"), 0)
    )
    num_running_lines: int = 0
    num_file_bytes: int = 0


class Eviction(StrEnum):
    """The reasons why a stored response is no longer kept, or never was."""

    QUOTA = "quota"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"


@dataclass(slots=True)
class ResponseCounts:
    """Counts of stored responses: how many there are, what they take, and those that went without
    being deleted."""

    num_stored: int = 0
    num_bytes: int = 0
    num_evicted: dict[Eviction, int] = field(default_factory=lambda: dict.fromkeys(Eviction, 0))


def _histograms(*, of_server: bool) -> dict[str, Histogram]:
    return {
        metric.name: Histogram(metric.buckets)
        for metric in METRICS
        if metric.kind is MetricKind.HISTOGRAM and metric.of_server is of_server
    }


class ServerMetrics:
    """The values of the metrics that a server has once, however many its models are. `paths` are
    those of the routes."""

    def __init__(self, paths: Collection[str]) -> None:
        self.histograms = _histograms(of_server=True)
        self.rate_accounts = RateAccounts()
        self.num_refused: Counter[str] = Counter()
        self.num_half_read_bytes = 0
        self.http = HttpMetrics(paths)
        self.batches = BatchCounts()
        self.responses = ResponseCounts()
        self.longest_hold = RecentMaximum()
        self.dropped_traces = dict.fromkeys(SpanDropReason, 0)
        self._loop_lag = self.histograms["event_loop_lag_seconds"]

    def on_refused(self, reason: str) -> None:
        """Count an HTTP request that was not read, or whose answer was not taken."""
        self.num_refused[reason] += 1

    def on_loop_lag(self, lag_s: float, held_s: float, now: float) -> None:
        self._loop_lag.observe(lag_s)
        self.longest_hold.observe(held_s, now)


class ModelMetrics:
    """The values of the metrics that each model has. `tenants` are all whose requests there may be:
    each has one of the `accounts`, which are the one place where ends are counted."""

    def __init__(self, tenants: Iterable[str]) -> None:
        self.accounts = ModelAccounts(tenants)
        self._stats = NO_STATS
        self._stats_before = NO_STATS
        self._disk = NO_DISK
        self._disk_before = NO_DISK
        self._transfer = NO_TRANSFER
        self._transfer_before = NO_TRANSFER
        self.num_restarts = dict.fromkeys(EndCause, 0)
        self.num_resumed = 0
        self.num_quarantined = 0
        self.flight_records = FlightRecordCounts()
        self._max_model_len: int | None = None
        self.histograms = _histograms(of_server=False)
        self.num_structured: Counter[str] = Counter()
        self.num_with_ignored: Counter[str] = Counter()
        self.num_grammar_failed = 0
        self.num_loosened_outputs = dict.fromkeys(("valid", "invalid", "unchecked"), 0)
        self.num_calls = dict.fromkeys(("whole", "broken"), 0)
        self.num_reasoning_tokens = 0
        self.num_pooled_prompts = 0
        self.num_unfinished = 0
        self._step_tokens = self.histograms["iteration_tokens_total"]
        self.token_gap = self.histograms["inter_token_latency_seconds"]

    def on_ready(self, facts: EngineFacts) -> None:
        """Make the buckets that depend on the model length, which is known now."""
        if facts.max_model_len == self._max_model_len:
            return
        self._max_model_len = facts.max_model_len
        for metric in METRICS:
            if metric.kind is MetricKind.HISTOGRAM and metric.buckets == UP_TO_MODEL_LENGTH:
                self.histograms[metric.name] = Histogram(buckets_up_to(facts.max_model_len))

    @property
    def stats(self) -> Stats:
        """The accounts of the engine; what is counted includes the engines before it."""
        if self._stats_before is NO_STATS:
            return self._stats
        return _added(self._stats_before, self._stats)

    @property
    def disk(self) -> DiskStats:
        """The accounts of the prefix cache on disk, as `stats`."""
        return self._disk.after(self._disk_before)

    @property
    def transfer(self) -> TransferStats:
        """The accounts of blocks that engines send each other, as `stats`."""
        return self._transfer.after(self._transfer_before)

    def on_output(self, output: EngineOutput) -> None:
        self._stats = output.stats
        self.accounts.take(output.usage)
        if output.disk is not None:
            self._disk = output.disk
        if output.transfer is not None:
            self._transfer = output.transfer
        if output.num_tokens:
            self._step_tokens.observe(output.num_tokens)

    def on_structured(self, kind: str, check_s: float) -> None:
        """Count an HTTP request whose outputs must be of a grammar that was given as `kind`."""
        self.num_structured[kind] += 1
        self.observe("grammar_check_seconds", check_s)

    def on_ignored(self, paths: Iterable[str]) -> None:
        """Count an HTTP request of which the parts at these paths were left out, by the fields of
        the body that they are in."""
        self.num_with_ignored.update({path.partition("[")[0].partition(".")[0] for path in paths})

    def on_calls(self, num_whole: int, num_broken: int) -> None:
        """Count the tool calls of an output that has ended, and those that broke off."""
        self.num_calls["whole"] += num_whole
        self.num_calls["broken"] += num_broken

    def on_down(self) -> None:
        """Note that the engine is gone: nothing runs, waits or is kept, all its blocks are free.
        What it did stays counted."""
        stats = self._stats
        self._stats = stats._replace(
            num_running=0,
            num_waiting=0,
            num_waiting_for_capacity=0,
            predicted_wait_s=0.0,
            num_blocks_free=(
                stats.num_blocks_free
                + stats.num_blocks_cached
                + stats.num_blocks_active
                + stats.num_blocks_pinned
            ),
            num_blocks_cached=0,
            num_blocks_active=0,
            num_blocks_pinned=0,
            num_blocks_swapped=0,
            num_blocks_on_host=0,
        )

    def on_unloaded(self) -> None:
        """Note that the engine was ended, and that its blocks are no more."""
        self.on_down()
        self._on_engine_gone(self._stats._replace(num_blocks_free=0))

    def on_engine_lost(self, cause: EndCause) -> None:
        """Note that the engine has ended, its cache with it, and that another follows."""
        self.num_restarts[cause] += 1
        self.on_down()
        self._on_engine_gone(self._stats)

    def _on_engine_gone(self, stats: Stats) -> None:
        """Keep the counts of an engine for those of the next one to be added to; `stats` has what
        else it leaves."""
        self._stats_before = _added(self._stats_before, stats)
        self._stats = NO_STATS._replace(num_blocks_free=stats.num_blocks_free)
        self._disk_before, self._disk = self.disk, NO_DISK
        self._transfer_before, self._transfer = self.transfer, NO_TRANSFER

    def on_engine_resumed(self, num_resumed: int, out_of_service_s: float) -> None:
        """Note that another engine goes on with `num_resumed` requests."""
        self.num_resumed += num_resumed
        self.observe("out_of_service_seconds", out_of_service_s)

    def observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)

    @property
    def num_finished(self) -> dict[FinishReason, int]:
        """The outputs that have ended, by why."""
        return {reason: self.accounts.num_ended(RequestEnd(reason)) for reason in FinishReason}

    @property
    def num_late(self) -> dict[DeadlineMiss, int]:
        """The requests whose deadlines were missed."""
        num_refused = self.accounts.num_ended(RequestEnd.DEADLINE_REFUSED)
        return {
            DeadlineMiss.REFUSED: num_refused,
            DeadlineMiss.UNFINISHED: self.num_unfinished,
        }


class RequestMeter:
    """Times one engine request from its arrival at the HTTP handler, in seconds. It ends once."""

    __slots__ = (
        *("_arrived_s", "_ended", "_first_s", "_last_s", "_max_tokens", "_metrics"),
        *("_num_prompt_tokens", "_num_tokens", "_tenant"),
    )

    def __init__(
        self, metrics: ModelMetrics, arrival: IncomingRequest, request: NewRequest
    ) -> None:
        self._metrics = metrics
        self._tenant = arrival.tenant.name
        self._arrived_s = arrived_s = arrival.arrived_s
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._max_tokens = request.stopping.max_tokens
        self._first_s: float | None = None
        self._last_s = arrived_s
        self._num_tokens = 0
        self._ended = False

    def tokens(self, num_tokens: int, now: float) -> None:
        """Count tokens that have come, at the time `now`."""
        if self._first_s is None:
            self._first_s = now
            self._metrics.observe("time_to_first_token_seconds", now - self._arrived_s)
        else:
            self._metrics.token_gap.observe(now - self._last_s)
        self._last_s = now
        self._num_tokens += num_tokens

    def vector(self, now: float) -> None:
        """Count a pooled prompt whose vector has come, at the time `now`."""
        self._metrics.num_pooled_prompts += 1
        self.prompt(now)

    def prompt(self, now: float) -> None:
        """Count a prompt without an output, which has ended at the time `now`."""
        self._last_s = now

    def succeed(self, reason: FinishReason, finish: Finish) -> None:
        """Count the end of a request whose output is complete."""
        if self._ended:
            return
        self.end(reason)
        metrics, num_tokens = self._metrics, self._num_tokens
        metrics.observe("e2e_request_latency_seconds", self._last_s - self._arrived_s)
        metrics.observe("request_prompt_tokens", self._num_prompt_tokens)
        if self._max_tokens:
            metrics.observe("request_generation_tokens", num_tokens)
            metrics.observe("request_params_max_tokens", self._max_tokens)
            metrics.observe("request_decode_time_seconds", finish.decode_s)
        num_computed = self._num_prompt_tokens - finish.num_cached_tokens
        metrics.observe("request_prefill_kv_computed_tokens", num_computed)
        metrics.observe("request_num_preemptions", finish.num_preemptions)
        if self._first_s is not None and num_tokens > 1:
            mean_s = (self._last_s - self._first_s) / (num_tokens - 1)
            metrics.observe("request_time_per_output_token_seconds", mean_s)
        metrics.observe("request_queue_time_seconds", finish.queue_s)
        metrics.observe("request_prefill_time_seconds", finish.prefill_s)
        metrics.observe("request_inference_time_seconds", finish.prefill_s + finish.decode_s)

    def end(self, reason: FinishReason | None) -> None:
        """Count the end of a request under `reason`; None for one that was refused: it never
        ran."""
        if not self._ended and reason is not None:
            self._metrics.accounts.count_end(self._tenant, RequestEnd(reason))
        self._ended = True
