"""A collector of spans, which keeps what it is sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Attributes = dict[str, int | bool | str]


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to it, by path, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Intake)
        self.posts: list[tuple[str, ExportTraceServiceRequest]] = []
        self.status = 200

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/somewhere/v1/traces"

    def spans(self) -> Iterator[Span]:
        for _, post in list(self.posts):
            for resource in post.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans

    def of(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace."""
        return [span for span in self.spans() if span.trace_id.hex() == trace_id]

    def calls(self, name: str) -> list[Attributes]:
        """Return the attributes of all calls of the cache of that name."""
        return [attributes(span) for span in self.spans() if span.name == f"kv_cache.{name}"]


class Intake(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = Thread(target=collector.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join(10)


def attributes(span: Span) -> Attributes:
    return {each.key: value_of(each.value) for each in span.attributes}


def value_of(value: AnyValue) -> int | bool | str:
    if value.HasField("string_value"):
        return value.string_value
    return value.bool_value if value.HasField("bool_value") else value.int_value
