"""Makes OpenTelemetry spans from records of requests, and sends them by OTLP over HTTP."""

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from quire.server.http.trace_context import TraceContext
from quire.server.observability.request_record import RequestRecord, TimelineSpan, parts_of

NS_PER_S = 1_000_000_000
MAX_CHOICES = 16
"""Choices of a request that have spans of their own; the usage counts all."""


class PresetIdGenerator(RandomIdGenerator):
    """Random ids, but for those that are set, each of which is given once: a request's own span has
    the id that its answer told."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_trace_id(self) -> int:
        chosen, self.trace_id = self.trace_id, None
        return super().generate_trace_id() if chosen is None else chosen

    def generate_span_id(self) -> int:
        chosen, self.span_id = self.span_id, None
        return super().generate_span_id() if chosen is None else chosen


class SpanCollector(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanExport:
    """Sends to `endpoint`. `epoch_s` is added to a record's seconds for those since 1970."""

    def __init__(self, endpoint: str, epoch_s: float) -> None:
        self._epoch_s = epoch_s
        self._ids, self._gathered = PresetIdGenerator(), SpanCollector()
        self._exporter = OTLPSpanExporter(endpoint)
        provider = TracerProvider(
            resource=Resource.create({"service.name": "quire"}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._gathered)
        self._tracer = provider.get_tracer("quire")

    def send(self, records: list[RequestRecord]) -> bool:
        """Send the spans of these requests; return whether the collector took them. It blocks."""
        for record in records:
            self._make(record)
        spans, self._gathered.spans = self._gathered.spans, []
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, record: RequestRecord) -> None:
        trace = record.trace
        self._ids.span_id = int(trace.span_id, 16)
        self._ids.trace_id = int(trace.trace_id, 16) if trace.parent_id is None else None
        root = self._tracer.start_span(
            f"{record.operation} {record.model}",
            context=_parent(trace),
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            start_time=self._ns(record.arrived_s),
        )
        for index, finish in enumerate(record.finishes[:MAX_CHOICES]):
            for part in parts_of(record, finish):
                self._make_part(root, index, part)
        root.end(self._ns(record.ended_s))

    def _make_part(self, root: Span, index: int, part: TimelineSpan) -> None:
        span = self._tracer.start_span(
            part.name,
            context=set_span_in_context(root),
            attributes={"quire.choice": index},
            start_time=self._ns(part.start_s),
        )
        for time_s, name, attributes in part.events:
            own = {f"quire.{meaning}": number for meaning, number in attributes.items()}
            span.add_event(name, own, self._ns(time_s))
        span.end(self._ns(part.end_s))

    def _ns(self, time_s: float) -> int:
        return round((time_s + self._epoch_s) * NS_PER_S)


def _attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    finishes = record.finishes
    return {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.id,
        "gen_ai.response.finish_reasons": [str(each.reason) for each in finishes],
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(each.num_output_tokens for each in finishes),
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
    }


def _parent(trace: TraceContext) -> Context:
    """Return the context that the client's span is current in, or an empty one."""
    if trace.parent_id is None:
        return Context()
    state = TraceState.from_header([trace.state]) if trace.state else None
    client = SpanContext(
        int(trace.trace_id, 16),
        int(trace.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=state,
    )
    return set_span_in_context(NonRecordingSpan(client), Context())
