"""Every metric, declared once: name, kind, labels, buckets. A rename here is a promise broken.

Names are exposed as `quire:NAME`, and as `vllm:NAME` where `twin` says that vLLM has the same
metric with the same type, labels and buckets. Those of HTTP have vLLM's plain names alone.
"""

from quire.server.observability.metric import UP_TO_MODEL_LENGTH, Metric, MetricKind
from quire.server.observability.metric import counter as _counter
from quire.server.observability.metric import gauge as _gauge
from quire.server.observability.metric import histogram as _histogram
from quire.server.observability.store_metric_table import STORE_METRICS
from quire.server.observability.usage_metric_table import USAGE_METRICS

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_TIME_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_TIME_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS_BUCKETS = tuple(
    float(n) for n in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
)
LOOP_LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GRAMMAR_CHECK_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
OUTAGE_BUCKETS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
PREEMPTIONS_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
CHOICES_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)

CACHE_CONFIG_LABELS = (
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "cache_dtype",
)

METRICS: tuple[Metric, ...] = (
    _gauge("num_requests_running", "Running requests."),
    _gauge("num_requests_waiting", "Waiting requests."),
    _gauge(
        "num_requests_waiting_by_reason",
        "Waiting requests: for blocks, sequences or token budget (capacity), or for others.",
        "reason",
    ),
    _gauge(
        "predicted_wait_seconds",
        "Predicted seconds until the waiting requests are computed; 0 if unknown.",
        twin=False,
    ),
    _counter(
        "engine_restarts_total",
        "Unexpected ends of engines by cause, each followed by a restart.",
        "cause",
        twin=False,
    ),
    _counter(
        "requests_resumed_total",
        "Requests that continued in another engine, counted each time.",
        twin=False,
    ),
    _counter(
        "requests_quarantined_total",
        "Requests that were ended because they crash the engine.",
        twin=False,
    ),
    _counter(
        "flight_records_written_total",
        "Files of the flight recorder, by reason: an engine ended, or a request asked for it.",
        "reason",
        twin=False,
    ),
    _counter(
        "flight_records_failed_total",
        "Files of the flight recorder that could not be written.",
        "reason",
        twin=False,
    ),
    _gauge("engine_restarting", "1 while an engine restarts, otherwise 0.", twin=False),
    _histogram(
        "out_of_service_seconds",
        "Time from the end of an engine until the next one serves.",
        OUTAGE_BUCKETS,
        twin=False,
    ),
    _gauge(
        "engine_ranks",
        "Ranks that share the model's weights and KV heads.",
        twin=False,
    ),
    _gauge("kv_cache_usage_perc", "Share of the KV blocks held by running requests, 0 to 1."),
    _gauge("cache_config_info", "Configuration of the KV cache, as labels.", *CACHE_CONFIG_LABELS),
    _counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
    _counter(
        "prompt_tokens_cached_total",
        "Prompt tokens that were not computed: prefix hits, and tokens of the choice that was "
        "forked.",
    ),
    _counter(
        "prompt_tokens_cached_by_source_total",
        "Cached prompt tokens by source: device memory, host memory, disk, or a peer.",
        "source",
    ),
    *STORE_METRICS,
    _counter("prompt_tokens_total", "Prompt tokens of requests whose answer began."),
    _counter(
        "generation_tokens_total",
        "Sampled tokens, including a few after a stop string and discarded ones.",
    ),
    _counter(
        "forced_tokens_total",
        "Generated tokens that a grammar determined, without sampling.",
        twin=False,
    ),
    _counter(
        "reasoning_tokens_total",
        "Tokens of reasoning, including its tags, as in the usage of answers.",
        twin=False,
    ),
    _counter(
        "pooled_prompts_total",
        "Prompts answered with a vector, such as embeddings.",
        twin=False,
    ),
    _counter("num_preemptions_total", "Preemptions of running requests."),
    _counter("request_success_total", "Ended requests by finish reason.", "finished_reason"),
    Metric(
        "admission_rejections_total",
        MetricKind.COUNTER,
        "Requests refused because the queue was full.",
        ("reason",),
        common=("model_name",),
    ),
    _histogram("iteration_tokens_total", "Tokens computed in one step.", STEP_TOKENS_BUCKETS),
    _histogram("time_to_first_token_seconds", "Time from arrival to first token.", TTFT_BUCKETS),
    _histogram("inter_token_latency_seconds", "Time between two tokens.", TOKEN_TIME_BUCKETS),
    _histogram(
        "request_time_per_output_token_seconds",
        "Mean time per token of a request after the first token.",
        TOKEN_TIME_BUCKETS,
    ),
    _histogram(
        "e2e_request_latency_seconds", "Time from arrival to last token.", REQUEST_TIME_BUCKETS
    ),
    _histogram("request_queue_time_seconds", "Time in the waiting queue.", REQUEST_TIME_BUCKETS),
    _histogram(
        "request_prefill_time_seconds", "Time from admission to first token.", REQUEST_TIME_BUCKETS
    ),
    _histogram(
        "request_decode_time_seconds", "Time from first token to last token.", REQUEST_TIME_BUCKETS
    ),
    _histogram(
        "request_inference_time_seconds", "Time from admission to last token.", REQUEST_TIME_BUCKETS
    ),
    _histogram("request_prompt_tokens", "Prompt tokens of a request.", UP_TO_MODEL_LENGTH),
    _histogram("request_generation_tokens", "Generated tokens of a request.", UP_TO_MODEL_LENGTH),
    _histogram(
        "request_max_num_generation_tokens",
        "Generated tokens of the longest choice of each prompt.",
        UP_TO_MODEL_LENGTH,
    ),
    _histogram(
        "request_params_max_tokens",
        "Maximum output tokens of a request: its limit, or the rest of the context.",
        UP_TO_MODEL_LENGTH,
    ),
    _histogram("request_params_n", "Requested choices of each prompt.", CHOICES_BUCKETS),
    _histogram(
        "request_prefill_kv_computed_tokens",
        "Computed prompt tokens of a request, without its prefix hit.",
        UP_TO_MODEL_LENGTH,
    ),
    _histogram("request_num_preemptions", "Preemptions of a request.", PREEMPTIONS_BUCKETS),
    _gauge(
        "kv_blocks",
        "KV blocks by state; on the host, blocks of swapped requests and cached prefixes. A "
        "pinned block counts only as pinned.",
        "state",
        twin=False,
    ),
    _gauge(
        "recurrent_states",
        "States of recurrent layers by use: free, snapshots that no request holds, held; on the "
        "host, states of swapped requests and snapshots.",
        "state",
        twin=False,
    ),
    _counter(
        "recurrent_states_moved_total",
        "States of recurrent layers copied out to the host and in from the host.",
        "kind",
        twin=False,
    ),
    _counter(
        "slo_attained_total",
        "Tokens of requests with a latency target that came in time: `ttft` first tokens, `itl` "
        "later ones.",
        "kind",
        twin=False,
    ),
    _counter(
        "slo_missed_total",
        "Tokens of requests with a latency target that came too late.",
        "kind",
        twin=False,
    ),
    _counter(
        "slo_foreseen_total",
        "Requests whose first token was expected after its target when they came.",
        "kind",
        twin=False,
    ),
    _counter(
        "requests_let_by_total",
        "Requests that were next and let a shorter one by, under `--queue-order shortest`; each "
        "counts once.",
        twin=False,
    ),
    _gauge(
        "step_time_error",
        "Mean share by which the expected times of recent steps were wrong. A target between "
        "tokens is undercut by twice that, by half of it at most.",
        twin=False,
    ),
    _gauge(
        "pinned_prefixes",
        "Pinned prefixes by state; those that are computing or lost hold no blocks.",
        "state",
        twin=False,
    ),
    _counter(
        "kv_blocks_moved_total",
        "KV blocks copied out to the host, in from the host, and for forks.",
        "kind",
        twin=False,
    ),
    _gauge(
        "last_step_age_seconds", "Time since the last step while requests are present.", twin=False
    ),
    _counter(
        "preemptions_total",
        "Preemptions of running requests, by method and cause: blocks that others need, or a more "
        "urgent request.",
        "kind",
        "cause",
        twin=False,
    ),
    _counter(
        "prefix_cache_misses_total",
        "Requests with a shorter prefix hit than possible, by reason.",
        "reason",
        twin=False,
    ),
    _counter(
        "prompt_tokens_without_state_total",
        "Prompt tokens whose keys and values were found, but no snapshot of the states after them.",
        twin=False,
    ),
    _gauge(
        "prefix_cache_hit_rate",
        "Share of the prompt tokens of the last 1000 requests found in the prefix cache, 0 to 1.",
        twin=False,
    ),
    _counter(
        "prefix_waits_total",
        "Requests that waited while another request computed a prefix of their prompt.",
        twin=False,
    ),
    _gauge(
        "kv_blocks_kept",
        "Cached KV blocks that are evicted behind all others: of sessions whose next turn is "
        "expected, or asked to be kept.",
        twin=False,
    ),
    _counter(
        "session_turns_total",
        "Requests that were known as the next turn of a session: `kept` where its blocks were kept "
        "until it came.",
        "blocks",
        twin=False,
    ),
    _counter(
        "session_blocks_dropped_total",
        "Sessions whose blocks are kept no longer: `expired`, since the next turn came too late or "
        "not at all, or `crowded_out` by newer sessions of the same key.",
        "reason",
        twin=False,
    ),
    _counter(
        "session_waits_total",
        "Requests that waited rather than take blocks that are kept for sessions.",
        twin=False,
    ),
    _counter("prefix_cache_resets_total", "Resets of the prefix cache.", twin=False),
    _counter("wasted_prefill_tokens_total", "Discarded computed tokens.", twin=False),
    _counter(
        "failed_steps_total", "Failed steps that were computed again in parts.", "kind", twin=False
    ),
    _counter(
        "steps_total",
        "Steps by CUDA graph: `none`, `piecewise` or `full`.",
        "cudagraph_mode",
        twin=False,
    ),
    Metric(
        "http_half_read_bytes",
        MetricKind.GAUGE,
        "Bytes of incomplete request bodies.",
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
    Metric(
        "http_refused_total",
        MetricKind.COUNTER,
        "HTTP requests that were not read to their end, and answers that the client did not read.",
        ("reason",),
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
    Metric(
        "rate_limited_total",
        MetricKind.COUNTER,
        "Requests refused because of the rates of their API key.",
        ("reason",),
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
    _counter(
        "deadline_exceeded_total",
        "Requests that missed their `deadline_ms`: refused, or ended unfinished.",
        "stage",
        twin=False,
    ),
    *USAGE_METRICS,
    _counter(
        "structured_requests_total",
        "HTTP requests with a grammar, by its kind.",
        "kind",
        twin=False,
    ),
    _counter(
        "requests_with_ignored_total",
        "HTTP requests with unknown fields left out or keywords of a schema not enforced, by the "
        "field of the body.",
        "field",
        twin=False,
    ),
    _counter(
        "grammar_failures_total",
        "Outputs that ended with an error because their grammar could not be compiled or followed.",
        twin=False,
    ),
    _counter(
        "loosened_outputs_total",
        "Outputs whose grammar left a part of their schema out, by the check of the whole.",
        "validity",
        twin=False,
    ),
    _counter(
        "tool_calls_total",
        "Tool calls in outputs: whole, or broken off by a limit or a mistake.",
        "end",
        twin=False,
    ),
    _histogram(
        "grammar_check_seconds",
        "Time to check the grammar of a request, in the threads that read bodies.",
        GRAMMAR_CHECK_BUCKETS,
        twin=False,
    ),
    _gauge(
        "batches",
        "Running batches, and batches that wait for their turn.",
        "state",
        twin=False,
        of_server=True,
    ),
    _counter(
        "batch_lines_total",
        "Lines of batches: answered, answered with an error, or put back for live requests.",
        "end",
        twin=False,
        of_server=True,
    ),
    _gauge("batch_lines_running", "Lines of batches in the engine.", twin=False, of_server=True),
    _gauge(
        "batch_file_bytes",
        "Bytes of stored batch files.",
        twin=False,
        of_server=True,
    ),
    _gauge("stored_responses", "Stored responses.", twin=False, of_server=True),
    _gauge("stored_response_bytes", "Bytes of the stored responses.", twin=False, of_server=True),
    _counter(
        "stored_responses_evicted_total",
        "Responses evicted for others of their key, expired, or too large.",
        "reason",
        twin=False,
        of_server=True,
    ),
    _gauge(
        "input_bodies_waiting",
        "Request bodies that wait to be parsed and tokenized, by size class.",
        "lane",
        twin=False,
        of_server=True,
    ),
    _histogram(
        "event_loop_lag_seconds",
        "Lag of the server's event loop, from a timer every 25 ms.",
        LOOP_LAG_BUCKETS,
        twin=False,
        of_server=True,
    ),
    _gauge(
        "event_loop_longest_hold_seconds",
        "Longest block of the event loop in the last minute, without waits for a core.",
        twin=False,
        of_server=True,
    ),
    _counter(
        "traces_dropped_total",
        "Traced requests whose spans were not sent: the queue was full, or the collector refused "
        "them.",
        "reason",
        twin=False,
        of_server=True,
    ),
    _gauge(
        "model_state",
        "1 for the current state of the model, 0 for all others.",
        "state",
        twin=False,
    ),
    _counter("model_loads_total", "Loads of the model by result.", "end", twin=False),
    _counter(
        "model_unloads_total",
        "Unloads of the model: after idle time, or on request.",
        "reason",
        twin=False,
    ),
    _gauge("requests_waiting_for_load", "Requests that wait for the model to load.", twin=False),
    _gauge("live_watchers", "Open streams of the live view.", twin=False),
    _counter("live_events_skipped_total", "Live events not sent to slow watchers.", twin=False),
    _gauge("memory_bytes", "Memory receipt by kind.", "kind", twin=False),
    _gauge(
        "kv_cache_passed_token_bytes",
        "Bytes of a token behind all sliding windows: kept, and of these never read again.",
        "kind",
        twin=False,
    ),
    _gauge(
        "kv_cache_tokens",
        "Context tokens that fit in KV memory, in requests of the model length.",
        twin=False,
    ),
    _gauge(
        "kv_cache_max_concurrency",
        "Requests of the model length that fit in KV memory at once.",
        twin=False,
    ),
    _gauge("max_model_len_fits", "Longest request that fits in KV memory.", twin=False),
    _gauge("startup_seconds", "Duration of each phase of the start.", "phase", twin=False),
)


METRIC_NAMES: tuple[str, ...] = tuple(metric.name for metric in METRICS)


def buckets_up_to(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... as far as they are not above `most`."""
    buckets: list[float] = []
    scale = 1
    while scale <= most:
        buckets += [float(scale * step) for step in (1, 2, 5) if scale * step <= most]
        scale *= 10
    return tuple(buckets)
