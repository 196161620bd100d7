"""Spans of requests: their parts add up, and a collector that hangs holds up nobody."""

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from threading import enumerate as enumerate_threads

from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event as TimelineEvent
from quire.scheduler.step import Finish
from quire.server.http.trace_context import TraceContext
from quire.server.observability.request_record import RequestRecord, parts_of
from quire.server.observability.request_spans import (
    MAX_BATCH,
    MAX_QUEUED,
    RequestSpans,
    SpanDropReason,
)
from tests.server.served import eventually

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", None, "00f067aa0ba902b7", is_sampled=True)


def finish(*events: TimelineEvent) -> Finish:
    return Finish(Reason.MAX_TOKENS, 0, 3, 4, 0, 0, 0.1, 0.2, 0.3, events)


def record(*finishes: Finish, ended_s: float = 9.0) -> RequestRecord:
    return RequestRecord(TRACE, "chat", "chatcmpl-1", "model", 3, 1.0, 2.0, ended_s, finishes, 0)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from(list(Reason))), max_size=20),
    st.integers(0, 5),
)
def test_parts_are_the_whole_and_hold_every_event(
    steps: list[tuple[int, Reason]], rest: int
) -> None:
    now, events = 2, []
    for step, reason in steps:
        now += step
        events.append(TimelineEvent(float(now), reason, 1, ""))
    parts = list(parts_of(record(ended_s=float(now + rest)), finish(*events)))
    assert parts[0].start_s == 1.0 and parts[-1].end_s == now + rest
    assert all(one.end_s == after.start_s for one, after in zip(parts, parts[1:], strict=False))
    assert sum(len(part.events) for part in parts) == len(events)


class Hung(BaseHTTPRequestHandler):
    """Answers nothing until the test ends."""

    ends = Event()

    def do_POST(self) -> None:
        self.ends.wait(30)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_collector_that_hangs_costs_records_alone() -> None:
    dropped = dict.fromkeys(SpanDropReason, 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hung) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        spans = RequestSpans(f"http://127.0.0.1:{server.server_address[1]}/", 0.0, dropped)
        began_s = time.monotonic()
        for _ in range(MAX_QUEUED + MAX_BATCH + 10):
            spans.record(record(finish()))
        assert time.monotonic() - began_s < 2
        assert 10 <= dropped[SpanDropReason.QUEUE_FULL] <= MAX_BATCH + 10
        Hung.ends.set()
        server.shutdown()
    spans.close()
    assert eventually(lambda: "request spans" not in [each.name for each in enumerate_threads()])
