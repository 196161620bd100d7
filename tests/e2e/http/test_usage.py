"""Four keys over a mixed run on a real server that is short of blocks: what the keys are told that
they have used adds up to what the server has counted, exactly.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server_process import MODEL, ServerProcess, eventually, server_process

ADMIN = "key-of-the-house"
NAMED = ("ann", "bob", "cat")
KEYS = "key-of-ann ann\nkey-of-bob bob\nkey-of-cat cat 1 rpm=2\nkey-of-eve\n"
FLAGS = (
    *("--max-model-len", "512", "--num-gpu-blocks-override", "40", "--max-num-seqs", "6"),
    *("--max-num-queued-reqs", "8", "--preemption-mode", "recompute"),
)
NS_PER_S = 10**9
ENDS = ("stop", "length", "abort", "error")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Told(NamedTuple):
    """The answer of `/v1/usage` to the admin, and all metrics, while nothing runs."""

    usage: dict[str, object]
    metrics: Samples

    def count(self, name: str) -> int:
        """The sum over the keys."""
        return sum(each["usage"][name] for each in self.usage["keys"])  # type: ignore[attr-defined]

    def ended(self, end: str) -> int:
        return sum(
            each["usage"]["requests"][end]
            for each in self.usage["keys"]  # type: ignore[attr-defined]
        )

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        wanted = set(labels.items())
        found = [
            value
            for (sample, has), value in self.metrics.items()
            if sample == f"quire:{name}" and wanted <= has
        ]
        assert found, name
        return sum(found)


def bearing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def complete(server: ServerProcess, key: str, first: int, **fields: object) -> int:
    """Run a completion of a prompt that begins like no other's; return the status."""
    body = {"prompt": [first, *range(10, 110)], "max_tokens": 40, "ignore_eos": True, **fields}
    reply = server.client.post("/v1/completions", json=body, headers=bearing(f"key-of-{key}"))
    return reply.status_code


def leave(server: ServerProcess, key: str) -> None:
    """Go away after the first event of a stream."""
    body = {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True}
    headers = bearing(f"key-of-{key}")
    with server.client.stream("POST", "/v1/completions", json=body, headers=headers) as reply:
        next(reply.iter_lines())


def run_mixed(server: ServerProcess) -> None:
    with ThreadPoolExecutor(24) as pool:
        crowd = [
            pool.submit(complete, server, key, number % 5 + 200, n=1 + number % 2)
            for number in range(7)
            for key in ("ann", "bob", "eve")
        ]
        statuses = {each.result() for each in crowd}
    assert statuses <= {200, 503}
    assert [complete(server, "cat", 300, max_tokens=2) for _ in range(4)] == [200, 200, 429, 429]
    assert complete(server, "ann", 400, max_tokens=4, stream=True) == 200
    assert complete(server, "bob", 400, stop=[" "], ignore_eos=False) == 200
    assert complete(server, "eve", 400, deadline_ms=1, max_tokens=300) in (408, 504, 503)
    assert complete(server, "eve", 400, max_tokens=10_000) == 400
    for key in ("ann", "eve"):
        leave(server, key)
    embedded = {"input": ["one text", "another one"]}
    for path, key, body in (
        ("/v1/embeddings", "bob", embedded),
        ("/v1/prefixes", "ann", {"prompt": "x" * 60}),
    ):
        reply = server.client.post(path, json=body, headers=bearing(f"key-of-{key}"))
        assert reply.status_code == 200, reply.text


def told_by(server: ServerProcess) -> Told:
    """What is told at one moment: while a prefix is pinned, blocks are held on and on."""
    usage = server.client.get("/v1/usage", headers=bearing(ADMIN)).raise_for_status().json()
    text = server.client.get("/metrics").text
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Told(usage, samples)


def moment(server: ServerProcess) -> Told:
    """What is told by two answers between which no engine has told anything."""
    for _ in range(200):
        told = told_by(server)
        if told.usage == told_by(server).usage:
            return told
        time.sleep(0.05)
    raise AssertionError("the accounts do not come to rest")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    Path(keys).write_text(KEYS)
    with server_process("--api-key-file", str(keys), "--admin-key", ADMIN, *FLAGS) as running:
        run_mixed(running)
        assert eventually(lambda: running.metric("quire:num_requests_running") == 0, 60)
        yield running


@pytest.fixture(scope="module")
def told(server: ServerProcess) -> Told:
    return moment(server)


def test_the_run_was_mixed(told: Told) -> None:
    for name in ("prompt_tokens", "cached_tokens", "output_tokens", "wasted_tokens", "queue_ns"):
        assert told.count(name) > 0, name
    assert told.ended("queue_full") > 0 and told.ended("stop") > 0 and told.ended("abort") >= 2


def test_sums_over_keys_are_what_the_server_counts(told: Told) -> None:
    counters = {
        "prompt_tokens": told.metric("prompt_tokens_total"),
        "cached_tokens": told.metric("prompt_tokens_cached_total"),
        "output_tokens": told.metric("generation_tokens_total"),
        "wasted_tokens": told.metric("recomputed_tokens_total", cause="preemption"),
        "lost_tokens": told.metric("recomputed_tokens_total", cause="restart"),
        "preemptions": told.metric("num_preemptions_total"),
    }
    assert {name: told.count(name) for name in counters} == counters
    num_wasted = told.metric("wasted_prefill_tokens_total")
    assert told.count("wasted_tokens") + told.count("lost_tokens") == num_wasted
    for end in ENDS:
        assert told.ended(end) == told.metric("request_success_total", finished_reason=end), end
    assert told.ended("queue_full") == told.metric("admission_rejections_total")
    assert told.ended("deadline_refused") == told.metric("deadline_exceeded_total", stage="refused")
    seconds = {
        "kv_block_ns": told.metric("kv_block_seconds_total", memory="device"),
        "host_block_ns": told.metric("kv_block_seconds_total", memory="host"),
        "queue_ns": told.metric("queue_seconds_total"),
    }
    assert {name: told.count(name) / NS_PER_S for name in seconds} == seconds


def test_the_whole_is_the_sum_of_its_parts(told: Told) -> None:
    whole = told.usage["usage"]
    assert isinstance(whole, dict)
    for name, value in whole.items():
        if name != "requests":
            assert value == told.count(name), name
    assert whole["requests"] == {end: told.ended(end) for end in whole["requests"]}
    assert told.usage["rate_limited"] == {"requests": 2, "tokens": 0}


def test_metrics_of_keys_add_up_too(told: Told) -> None:
    for kind, name in (("prompt", "prompt_tokens_total"), ("output", "generation_tokens_total")):
        assert told.metric("tenant_tokens_total", kind=kind) == told.metric(name)
    for end in ENDS:
        total = told.metric("request_success_total", finished_reason=end)
        assert told.metric("tenant_requests_total", end=end) == total
    limited = {name: told.metric("tenant_rate_limited_total", tenant=name) for name in NAMED}
    assert limited == {"ann": 0, "bob": 0, "cat": 2}
    tenants = {dict(labels)["tenant"] for _, labels in told.metrics if "tenant" in dict(labels)}
    assert tenants == {*NAMED, "(others)"}, "a key without a name has no label of its own"


def test_a_key_sees_its_own_account_alone(server: ServerProcess) -> None:
    def ask(key: str, /, **query: str) -> httpx.Response:
        return server.client.get("/v1/usage", headers=bearing(key), params=query)

    own = ask("key-of-cat").json()
    assert [each["key"] for each in own["keys"]] == ["cat"]
    assert own["keys"][0]["rate_limited"] == {"requests": 2, "tokens": 0}
    assert own["usage"] == own["keys"][0]["usage"] == ask(ADMIN, key="cat").json()["usage"]
    assert [each["model"] for each in own["keys"][0]["models"]] == [MODEL]
    assert ask("key-of-cat", key="cat").json() == own
    refused = ask("key-of-cat", key="ann")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
    unknown = ask(ADMIN, key="dan")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "key_not_found")
    assert ask(ADMIN, model="none").json()["error"]["code"] == "model_not_found"
    everyone = ask(ADMIN).json()
    names = [each["key"] for each in everyone["keys"]]
    assert names[:3] == list(NAMED) and names[3].startswith("key-") and names[4:] == ["(admin)"]
    assert "key-of" not in ask(ADMIN).text


def test_pinned_blocks_are_paid_for_while_nobody_runs(server: ServerProcess) -> None:
    def held_ns() -> int:
        answer = server.client.get("/v1/usage", headers=bearing("key-of-ann")).json()
        held: int = answer["usage"]["kv_block_ns"]
        return held

    before = held_ns()
    assert eventually(lambda: held_ns() > before, 15)
