"""A request with a `traceparent` becomes spans in a collector, below the span of the client."""

from collections.abc import Iterator

import pytest

from tests.collector import Collector, attributes, collecting
from tests.e2e.server_process import MODEL, ServerProcess, eventually, server_process

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
UNSAMPLED, LATER, REFUSED = (f"{digit}bf92f3577b34da6a3ce929d0e0e4736" for digit in "567")
PARTS = {"received", "queued", "prefill", "decode", "delivered"}


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[ServerProcess, Collector]]:
    with collecting() as collector:
        with server_process("--otlp-traces-endpoint", collector.endpoint) as server:
            yield server, collector


def ask(server: ServerProcess, trace_id: str, flags: str) -> str:
    """Ask for four tokens in a trace; return the `traceparent` of the answer."""
    reply = server.client.post(
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": "O"}],
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": 0,
        },
        headers={"traceparent": f"00-{trace_id}-{PARENT}-{flags}", "tracestate": "a=1"},
    )
    reply.raise_for_status()
    told: str = reply.headers["traceparent"]
    return told


def test_a_request_is_a_span_below_that_of_its_client(
    traced: tuple[ServerProcess, Collector],
) -> None:
    server, collector = traced
    told = ask(server, TRACE, "01")
    assert eventually(lambda: len(collector.of(TRACE)) > 1, 10)
    spans = {span.name: span for span in collector.of(TRACE)}
    root = spans[f"chat {MODEL}"]
    assert root.parent_span_id.hex() == PARENT
    assert root.trace_state == "a=1"
    assert told == f"00-{TRACE}-{root.span_id.hex()}-01"
    told_of_it = attributes(root)
    assert told_of_it["gen_ai.operation.name"] == "chat"
    assert told_of_it["gen_ai.usage.output_tokens"] == 4
    parts = [span for span in collector.of(TRACE) if span is not root and span.name in PARTS]
    assert {span.name for span in parts} >= {"received", "queued", "prefill", "decode"}
    assert {span.parent_span_id for span in parts} == {root.span_id}
    total = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in parts)
    whole = root.end_time_unix_nano - root.start_time_unix_nano
    assert abs(total - whole) < 1_000_000
    events = {event.name for span in parts for event in span.events}
    assert {"queued", "admitted", "first_token"} <= events


def test_what_is_not_sampled_is_not_sent(traced: tuple[ServerProcess, Collector]) -> None:
    server, collector = traced
    assert ask(server, UNSAMPLED, "00").endswith("-00")
    ask(server, LATER, "01")
    assert eventually(lambda: len(collector.of(LATER)) > 1, 10)
    assert collector.of(UNSAMPLED) == []


def test_what_the_collector_refuses_is_counted(traced: tuple[ServerProcess, Collector]) -> None:
    server, collector = traced
    collector.status = 400
    ask(server, REFUSED, "01")
    dropped = 'quire:traces_dropped_total{reason="not_taken"}'
    try:
        assert eventually(lambda: server.metric(dropped) == 1, 20)
    finally:
        collector.status = 200
