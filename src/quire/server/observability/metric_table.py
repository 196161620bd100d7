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
    _gauge("num_requests_running", "Requests that are being computed."),
    _gauge("num_requests_waiting", "Requests that wait to be computed."),
    _gauge(
        "num_requests_waiting_by_reason",
        "Waiting requests: for blocks, sequences or budget (capacity), or for others.",
        "reason",
    ),
    _gauge(
        "predicted_wait_seconds",
        "Seconds until what waits now is computed; 0 if not known.",
        twin=False,
    ),
    _counter(
        "engine_restarts_total",
        "Engines that ended although nobody had ended them, by why, each followed by another.",
        "cause",
        twin=False,
    ),
    _counter(
        "requests_resumed_total",
        "Requests that went on in another engine, each time they did.",
        twin=False,
    ),
    _counter(
        "requests_quarantined_total",
        "Requests that were found to crash the engine, and ended for it.",
        twin=False,
    ),
    _counter(
        "flight_records_written_total",
        "Files of the flight recorder: because an engine had ended, or asked for.",
        "reason",
        twin=False,
    ),
    _counter(
        "flight_records_failed_total",
        "Files of the flight recorder that could not be written.",
        "reason",
        twin=False,
    ),
    _gauge("engine_restarting", "1 while the engine has ended and another loads.", twin=False),
    _histogram(
        "out_of_service_seconds",
        "From the end of an engine until the next one goes on.",
        OUTAGE_BUCKETS,
        twin=False,
    ),
    _gauge(
        "engine_ranks",
        "Processes that the model's weights and KV heads are divided among.",
        twin=False,
    ),
    _gauge("kv_cache_usage_perc", "Share of the KV blocks held by running requests, 0 to 1."),
    _gauge("cache_config_info", "Facts of the KV cache, as labels.", *CACHE_CONFIG_LABELS),
    _counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
    _counter(
        "prompt_tokens_cached_total",
        "Prompt tokens not computed: from the prefix cache, or those of the choice forked from.",
    ),
    _counter(
        "prompt_tokens_cached_by_source_total",
        "The same by where they came from: memory of the device, of the host, disk, or a peer.",
        "source",
    ),
    *STORE_METRICS,
    _counter("prompt_tokens_total", "Prompt tokens of requests that began to answer."),
    _counter(
        "generation_tokens_total", "Tokens drawn, with the few past a stop string or thrown away."
    ),
    _counter(
        "forced_tokens_total",
        "Generation tokens that a grammar decided and that were computed without being drawn.",
        twin=False,
    ),
    _counter(
        "reasoning_tokens_total",
        "Tokens of reasoning, its tags among them, as the usage of answers counts them.",
        twin=False,
    ),
    _counter(
        "pooled_prompts_total",
        "Prompts that were answered with a vector, as embeddings.",
        twin=False,
    ),
    _counter("num_preemptions_total", "Times a running request was put back."),
    _counter("request_success_total", "Ended requests by why they ended.", "finished_reason"),
    Metric(
        "admission_rejections_total",
        MetricKind.COUNTER,
        "Requests not taken because the queue was full.",
        ("reason",),
        common=("model_name",),
    ),
    _histogram("iteration_tokens_total", "Tokens computed in one step.", STEP_TOKENS_BUCKETS),
    _histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS),
    _histogram("inter_token_latency_seconds", "From one token to the next.", TOKEN_TIME_BUCKETS),
    _histogram(
        "request_time_per_output_token_seconds",
        "Mean time of a request's tokens after the first.",
        TOKEN_TIME_BUCKETS,
    ),
    _histogram("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_TIME_BUCKETS),
    _histogram("request_queue_time_seconds", "Time spent waiting.", REQUEST_TIME_BUCKETS),
    _histogram("request_prefill_time_seconds", "Admission to first token.", REQUEST_TIME_BUCKETS),
    _histogram("request_decode_time_seconds", "First token to last token.", REQUEST_TIME_BUCKETS),
    _histogram("request_inference_time_seconds", "Admission to last token.", REQUEST_TIME_BUCKETS),
    _histogram("request_prompt_tokens", "Prompt tokens of a request.", UP_TO_MODEL_LENGTH),
    _histogram("request_generation_tokens", "Tokens a request generated.", UP_TO_MODEL_LENGTH),
    _histogram(
        "request_max_num_generation_tokens",
        "Tokens of the longest choice of each prompt.",
        UP_TO_MODEL_LENGTH,
    ),
    _histogram(
        "request_params_max_tokens",
        "Tokens that a request may generate: as asked, else what the context leaves.",
        UP_TO_MODEL_LENGTH,
    ),
    _histogram("request_params_n", "Choices asked for of each prompt.", CHOICES_BUCKETS),
    _histogram(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a request that were computed, not found in the prefix cache.",
        UP_TO_MODEL_LENGTH,
    ),
    _histogram("request_num_preemptions", "Preemptions of a request.", PREEMPTIONS_BUCKETS),
    _gauge(
        "kv_blocks",
        "KV blocks by what they hold; of the host's, swapped requests and cached prefixes. A "
        "pinned block counts as that alone, whoever else holds it.",
        "state",
        twin=False,
    ),
    _gauge(
        "pinned_prefixes",
        "Prefixes that clients have pinned; those that are computing or lost hold no blocks now.",
        "state",
        twin=False,
    ),
    _counter(
        "kv_blocks_moved_total",
        "KV blocks copied out to the host, in from it, and for a fork.",
        "kind",
        twin=False,
    ),
    _gauge("last_step_age_seconds", "Time without progress while there is work.", twin=False),
    _counter(
        "preemptions_total",
        "Times a running request was put back, by how and why.",
        "kind",
        "cause",
        twin=False,
    ),
    _counter(
        "prefix_cache_misses_total",
        "Requests of which less was cached than could be, by why.",
        "reason",
        twin=False,
    ),
    _gauge(
        "prefix_cache_hit_rate",
        "Share of the prompt tokens of the last 1000 requests found in the prefix cache, 0 to 1.",
        twin=False,
    ),
    _counter(
        "prefix_waits_total",
        "Requests that waited while another computed the beginning of their prompt.",
        twin=False,
    ),
    _counter("prefix_cache_resets_total", "Times the prefix cache was emptied.", twin=False),
    _counter("wasted_prefill_tokens_total", "Computed tokens thrown away.", twin=False),
    _counter("failed_steps_total", "Steps that failed, and went on in parts.", "kind", twin=False),
    _counter(
        "steps_total",
        "Steps by how they were launched: `none` of a CUDA graph, `piecewise` or `full`.",
        "cudagraph_mode",
        twin=False,
    ),
    Metric(
        "http_half_read_bytes",
        MetricKind.GAUGE,
        "Bytes of request bodies that have not come whole.",
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
    Metric(
        "http_refused_total",
        MetricKind.COUNTER,
        "HTTP requests that were not read to their end, and answers that the client did not take.",
        ("reason",),
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
    Metric(
        "rate_limited_total",
        MetricKind.COUNTER,
        "Requests not taken because their API key has had its requests or tokens of a minute.",
        ("reason",),
        common=("model_name",),
        twin=False,
        of_server=True,
    ),
    _counter(
        "deadline_exceeded_total",
        "Requests whose `deadline_ms` ran out: not taken (refused) or ended (unfinished).",
        "stage",
        twin=False,
    ),
    *USAGE_METRICS,
    _counter(
        "structured_requests_total",
        "HTTP requests whose outputs must be of a grammar, by how it was given.",
        "kind",
        twin=False,
    ),
    _counter(
        "grammar_failures_total",
        "Outputs that ended with an error, as their grammar could not be compiled or followed.",
        twin=False,
    ),
    _counter(
        "tool_calls_total",
        "Tool calls that outputs held: whole, or broken off by a limit or a mistake.",
        "end",
        twin=False,
    ),
    _histogram(
        "grammar_check_seconds",
        "Checking the grammar of such a request, in the threads that read bodies.",
        GRAMMAR_CHECK_BUCKETS,
        twin=False,
    ),
    _gauge(
        "batches",
        "Batches that run, and that wait for their turn.",
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
        "Bytes of the files that are kept for batches.",
        twin=False,
        of_server=True,
    ),
    _gauge("stored_responses", "Responses that are stored.", twin=False, of_server=True),
    _gauge("stored_response_bytes", "Bytes of the stored responses.", twin=False, of_server=True),
    _counter(
        "stored_responses_evicted_total",
        "Responses that gave way to others of their key, expired, or had no room.",
        "reason",
        twin=False,
        of_server=True,
    ),
    _gauge(
        "input_bodies_waiting",
        "Request bodies that wait to be parsed and tokenised, by how large they are.",
        "lane",
        twin=False,
        of_server=True,
    ),
    _histogram(
        "event_loop_lag_seconds",
        "How late the server's event loop came to a timer, asked every 25 ms.",
        LOOP_LAG_BUCKETS,
        twin=False,
        of_server=True,
    ),
    _gauge(
        "event_loop_longest_hold_seconds",
        "Longest of the last minute that the event loop was held, without waits for a core.",
        twin=False,
        of_server=True,
    ),
    _counter(
        "traces_dropped_total",
        "Traced requests whose spans were not sent: the queue was full, or they were not taken.",
        "reason",
        twin=False,
        of_server=True,
    ),
    _gauge(
        "model_state",
        "1 for the state that the model is in, 0 for all others.",
        "state",
        twin=False,
    ),
    _counter("model_loads_total", "Loads of the model by how they ended.", "end", twin=False),
    _counter(
        "model_unloads_total",
        "Times the model was unloaded: nobody used it (idle), or it was asked for.",
        "reason",
        twin=False,
    ),
    _gauge("requests_waiting_for_load", "Requests that wait for the model to load.", twin=False),
    _gauge("live_watchers", "Streams of the live view that are open.", twin=False),
    _counter("live_events_skipped_total", "Live events not sent to slow watchers.", twin=False),
    _gauge("memory_bytes", "The memory receipt.", "kind", twin=False),
    _gauge(
        "kv_cache_passed_token_bytes",
        "Bytes of a token that all windows have passed: kept, and of these never seen again.",
        "kind",
        twin=False,
    ),
    _gauge(
        "kv_cache_tokens",
        "Tokens of context that requests of the model length have together.",
        twin=False,
    ),
    _gauge(
        "kv_cache_max_concurrency",
        "Requests of the model length that KV memory holds at once.",
        twin=False,
    ),
    _gauge("max_model_len_fits", "Longest request that KV memory could hold.", twin=False),
    _gauge("startup_seconds", "Time of each phase of the start.", "phase", twin=False),
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
