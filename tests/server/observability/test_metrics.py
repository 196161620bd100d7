"""The metric contract: names, types, labels, buckets, twins, and numbers that are right."""

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from quire.engine.messages import EngineOutput
from quire.engines.process.end_cause import EndCause
from quire.scheduler.step import GAUGES, Stats
from quire.server.config import MetricsCompat
from quire.server.observability.histogram import Histogram
from quire.server.observability.metric import MetricKind
from quire.server.observability.metric_table import METRIC_NAMES, METRICS, buckets_up_to
from quire.server.observability.metrics import ModelMetrics
from tests.server.scripted_engine import FACTS
from tests.server.served import MODEL, Served, plain_config, serving

VLLM = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
cache_config_info prefix_cache_queries_total prefix_cache_hits_total prompt_tokens_cached_total
prompt_tokens_cached_by_source_total
prompt_tokens_total generation_tokens_total num_preemptions_total request_success_total
admission_rejections_total iteration_tokens_total time_to_first_token_seconds
inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_inference_time_seconds request_prompt_tokens request_generation_tokens
request_max_num_generation_tokens request_params_max_tokens request_params_n
request_prefill_kv_computed_tokens request_num_preemptions
""".split()
"""What vLLM has too, and its dashboards ask for."""


def families(served: Served) -> dict[str, tuple[str, set[frozenset[str]]]]:
    """Type and label sets by the name that is written in a query."""
    found: dict[str, tuple[str, set[frozenset[str]]]] = {}
    for family in text_string_to_metric_families(served.client.get("/metrics").text):
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, {frozenset(sample.labels) for sample in family.samples})
    return found


def test_every_metric_is_there_with_its_twin(served: Served) -> None:
    served.complete(prompt="x", max_tokens=3)
    found = families(served)
    assert set(VLLM) <= set(METRIC_NAMES)
    for metric in METRICS:
        kind, label_sets = found[f"quire:{metric.name}"]
        assert kind == metric.kind
        wanted = {*metric.common, *metric.labels}
        assert all(labels - {"le"} == wanted for labels in label_sets)
        assert (f"vllm:{metric.name}" in found) == metric.twin
        assert metric.twin == (metric.name in VLLM)
        if metric.twin:
            assert found[f"vllm:{metric.name}"] == found[f"quire:{metric.name}"]


def test_twins_can_be_left_out() -> None:
    with serving(replace(plain_config(), metrics_compat=MetricsCompat.NONE)) as served:
        text = served.client.get("/metrics").text
        assert "quire:num_requests_running" in text
        assert "vllm:" not in text


def test_counters_end_in_total() -> None:
    for metric in METRICS:
        if metric.kind is MetricKind.COUNTER:
            assert metric.name.endswith("_total")


def test_a_finished_request_is_counted_once_everywhere() -> None:
    with serving(plain_config()) as served:
        assert served.complete(prompt=[5, 6, 7], max_tokens=4).status_code == 200
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        for name, value in (
            ("generation_tokens_total", 4),
            ("prompt_tokens_total", 3),
            ("time_to_first_token_seconds_count", 1),
            ("inter_token_latency_seconds_count", 3),
            ("e2e_request_latency_seconds_count", 1),
            ("request_time_per_output_token_seconds_count", 1),
            ("request_prompt_tokens_sum", 3),
            ("request_generation_tokens_sum", 4),
            ("request_max_num_generation_tokens_sum", 4),
            ("request_params_max_tokens_sum", 4),
            ("request_params_n_sum", 1),
            ("request_prefill_kv_computed_tokens_sum", 0),
            ("request_num_preemptions_count", 1),
            ("request_num_preemptions_sum", 0),
            ("request_queue_time_seconds_sum", 0.25),
            ("request_prefill_time_seconds_sum", 0.5),
            ("request_decode_time_seconds_sum", 0.75),
            ("request_inference_time_seconds_sum", 1.25),
            ("iteration_tokens_total_count", 4),
            ("iteration_tokens_total_sum", 4),
            ("num_requests_running", 0),
            ("kv_cache_usage_perc", 0),
        ):
            assert served.metric(f"vllm:{name}{labels}") == value, name
        ended = 'vllm:request_success_total{engine="0",finished_reason='
        assert served.metric(ended + '"length"') == 1
        assert served.metric(ended) == 1


def test_a_prompt_of_many_choices_is_counted_once() -> None:
    with serving(plain_config()) as served:
        served.complete(prompt=["one", "another"], n=3, max_tokens=4)
        served.chat(messages=[{"role": "user", "content": "x"}], stop_token_ids=list(range(256)))
        room = FACTS.max_model_len - len(served.engine.submitted[-1].prompt_token_ids)
        name = "vllm:request_params_n"
        assert (served.metric(f"{name}_count"), served.metric(f"{name}_sum")) == (3, 7)
        assert served.metric("vllm:request_max_num_generation_tokens_count") == 3
        assert served.metric("vllm:request_params_max_tokens_count") == 7
        assert served.metric("vllm:request_params_max_tokens_sum") == 6 * 4 + room


def test_prefix_hits_and_misses_are_told() -> None:
    with serving(plain_config()) as served:
        assert served.metric("quire:prefix_cache_hit_rate") == 0
        served.complete(prompt="x", max_tokens=1)
        assert served.metric("quire:prefix_cache_hit_rate") == 0.25
        missed = 'quire:prefix_cache_misses_total{engine="0",model_name="test-model",reason='
        assert served.metric(missed + '"evicted"') == 3
        assert served.metric(missed + '"new"') == 0


def test_facts_are_metrics(served: Served) -> None:
    assert served.metric('quire:memory_bytes{engine="0",kind="kv_cache"') == 2000
    assert served.metric('quire:startup_seconds{engine="0",model_name="test-model",phase="load"}')
    assert served.metric("quire:kv_cache_tokens") == 15984
    assert served.metric("quire:kv_cache_max_concurrency") == 62.4375
    assert served.metric("quire:max_model_len_fits") == 256
    text = served.client.get("/metrics").text
    line = next(each for each in text.splitlines() if each.startswith("vllm:cache_config_info"))
    assert 'block_size="16"' in line and 'num_gpu_blocks="1000"' in line
    assert 'gpu_memory_utilization="0.9"' in line and 'cache_dtype="int8"' in line
    assert line.endswith(" 1.0")


def test_bounds_are_those_of_vllm(served: Served) -> None:
    assert bounds(served, "vllm:request_params_n") == [1, 2, 5, 10, 20]
    assert bounds(served, "vllm:request_num_preemptions") == [1, 2, 3, 4, 5, 10, 20]
    assert bounds(served, "vllm:request_params_max_tokens") == [1, 2, 5, 10, 20, 50, 100, 200]


def bounds(served: Served, name: str) -> list[float]:
    lines = served.client.get("/metrics").text.splitlines()
    found = [line.split('le="')[1].split('"')[0] for line in lines if f"{name}_bucket" in line]
    assert found.pop() == "+Inf"
    return [float(bound) for bound in found]


def test_token_buckets_reach_the_model_length(served: Served) -> None:
    served.complete(prompt="x", max_tokens=3)
    assert bounds(served, "vllm:request_prompt_tokens") == [1, 2, 5, 10, 20, 50, 100, 200]


@pytest.mark.parametrize(
    ("most", "buckets"), [(1, (1,)), (9, (1, 2, 5)), (50, (1, 2, 5, 10, 20, 50)), (0, ())]
)
def test_one_two_five(most: int, buckets: tuple[float, ...]) -> None:
    assert buckets_up_to(most) == buckets


def test_histogram_bounds_are_inclusive() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    histogram.observe(9.0, times=2)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 3), (float("inf"), 6)]
    assert histogram.total == 23.5


PROMETHEUS_ASKS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def test_openmetrics_has_the_same_families_to_those_who_ask() -> None:
    with serving(plain_config()) as fresh:
        fresh.complete(
            prompt="a prompt longer than what the scripted engine had cached", max_tokens=3
        )
        reply = fresh.client.get("/metrics", headers={"accept": PROMETHEUS_ASKS})
        plain = fresh.client.get("/metrics").text
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    parsed = openmetrics_families(reply.text)  # type: ignore[no-untyped-call]
    found = {family.name: family.type for family in parsed}
    assert found == {each.name: each.type for each in text_string_to_metric_families(plain)}
    assert reply.text.endswith("# EOF\n") and "quire:num_requests_running{" in reply.text


@pytest.mark.parametrize("accept", ["text/plain", "*/*", "application/openmetrics-text;q=0"])
def test_others_are_given_the_text_format_of_prometheus(served: Served, accept: str) -> None:
    reply = served.client.get("/metrics", headers={"accept": accept})
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(("coding", "sent"), [("gzip", "gzip"), ("identity", None)])
def test_metrics_are_compressed_for_those_who_ask(
    served: Served, coding: str, sent: str | None
) -> None:
    reply = served.client.get("/metrics", headers={"accept-encoding": coding})
    assert reply.headers.get("content-encoding") == sent
    assert "quire:num_requests_running" in reply.text
    assert (int(reply.headers["content-length"]) < len(reply.text) / 4) == (sent is not None)


def test_every_account_of_an_engine_is_a_gauge_or_goes_on_in_the_next_one() -> None:
    known = {
        "num_running",
        "num_waiting",
        "num_waiting_for_capacity",
        "predicted_wait_s",
        "step_time_error",
    }
    prefixes = ("num_blocks_", "num_states_", "num_recent_")
    assert GAUGES == known | {name for name in Stats._fields if name.startswith(prefixes)}
    metrics = ModelMetrics(())
    first = Stats(*range(1, len(Stats._fields) + 1))
    metrics.on_output(EngineOutput(1, 1, 0.0, (), (), (), first))
    assert metrics.stats == first
    metrics.on_engine_lost(EndCause.KILLED)
    lost = metrics.stats
    assert (lost.num_running, lost.num_blocks_active) == (0, 0)
    blocks = (first.num_blocks_free, first.num_blocks_cached, first.num_blocks_active)
    assert lost.num_blocks_free == sum(blocks) + first.num_blocks_pinned
    counts = [name for name in Stats._fields if name not in GAUGES]
    assert all(getattr(lost, name) == getattr(first, name) for name in counts)
    metrics.on_output(EngineOutput(1, 1, 0.0, (), (), (), first))
    for name, value in zip(Stats._fields, metrics.stats, strict=True):
        assert value == getattr(first, name) * (1 if name in GAUGES else 2), name
