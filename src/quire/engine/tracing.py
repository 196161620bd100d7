"""OpenTelemetry spans around the cache's calls, if an endpoint is configured.

Without an endpoint nothing of OpenTelemetry is imported. If the collector is down, spans are lost,
but no step waits for it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from quire.cache.admission import BlockFinder, BlocksMissing
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.pins import Pins
from quire.cache.prefix_log import PrefixLog
from quire.cache.states.state_cache import StateCache
from quire.cache.states.state_use import StateUse
from quire.cache.transfers import BlockPosition, IncomingBlock, Transfers
from quire.extras import how_to_install

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

MAX_FLUSH_S = 2.0
"""Less than the client waits for an engine process that ends."""
NEEDED = ("opentelemetry.sdk.trace.export", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Tracing(NamedTuple):
    """A tracer and how to end it: `close` exports queued spans for MAX_FLUSH_S at most."""

    tracer: "Tracer"
    close: Callable[[], None]


class TracedPins(Pins):
    """Pins with a span for each call that changes what is pinned, for the request of that name."""

    def __init__(
        self,
        finder: BlockFinder,
        states: StateCache | None,
        tracer: "Tracer",
        *,
        is_caching: bool,
    ) -> None:
        super().__init__(finder, states, is_caching=is_caching)
        self._tracer = tracer

    def pin(
        self, name: str, table: BlockTable, token_ids: Sequence[int], *, max_blocks: int
    ) -> int | BlocksMissing | None:
        with _span(self._tracer, "pin", name) as span:
            pinned = super().pin(name, table, token_ids, max_blocks=max_blocks)
            span.set_attribute("quire.num_tokens", len(token_ids))
            if isinstance(pinned, BlocksMissing):
                span.set_attribute("quire.num_short_blocks", pinned.num_blocks)
            else:
                span.set_attribute("quire.num_blocks", pinned or 0)
            return pinned

    def unpin(self, name: str) -> None:
        """Trace only names that have blocks."""
        if name not in self._blocks_of:
            return
        with _span(self._tracer, "unpin", name) as span:
            span.set_attribute("quire.num_blocks", len(self._blocks_of[name]))
            super().unpin(name)


class TracedTransfers(Transfers):
    """Transfers with a span for each call that takes blocks or states in, from a disk or a peer."""

    def __init__(
        self, finder: BlockFinder, log: PrefixLog, states: StateCache | None, tracer: "Tracer"
    ) -> None:
        super().__init__(finder, log, states)
        self._tracer = tracer

    def take_in(
        self, chain: Chain, places: Sequence[BlockPosition], name: str = ""
    ) -> list[IncomingBlock]:
        with _span(self._tracer, "take_in", name) as span:
            taken = super().take_in(chain, places, name)
            span.set_attributes(
                {"quire.num_wanted_blocks": len(places), "quire.num_blocks": len(taken)}
            )
            return taken


class TracedKVCache(KVCache):
    """A KV cache with a span for each call that changes who holds blocks or what can be found. The
    span's attributes have the arguments, the result and the name of the table, which is the id of
    its request."""

    def __init__(self, config: CacheConfig, tracer: "Tracer") -> None:
        super().__init__(config)
        self._tracer = tracer
        self.pins = TracedPins(self._finder, self._states, tracer, is_caching=self._is_caching)

    @property
    def transfers(self) -> Transfers:
        return TracedTransfers(self._finder, self._log, self._states, self._tracer)

    def admit(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        *,
        keep_free: int = 0,
        use_cache: bool = True,
        use_host: bool = True,
    ) -> int | BlocksMissing:
        with _span(self._tracer, "admit", table.name) as span:
            admitted = super().admit(
                table, token_ids, keep_free=keep_free, use_cache=use_cache, use_host=use_host
            )
            span.set_attribute("quire.num_tokens", len(token_ids))
            if isinstance(admitted, BlocksMissing):
                span.set_attribute("quire.num_short_blocks", admitted.num_blocks)
            else:
                span.set_attribute("quire.num_cached_tokens", admitted)
                span.set_attribute("quire.num_blocks", _num_held(table))
            return admitted

    def grow(self, table: BlockTable, start: int, end: int) -> tuple[tuple[int, ...], ...] | None:
        with _span(self._tracer, "grow", table.name) as span:
            new_block_ids = super().grow(table, start, end)
            span.set_attributes(
                {"quire.start": start, "quire.end": end, "quire.is_short": new_block_ids is None}
            )
            if new_block_ids is not None:
                span.set_attribute("quire.num_blocks", sum(map(len, new_block_ids)))
            return new_block_ids

    def plan_states(self, table: BlockTable, start: int, end: int) -> StateUse | None:
        """Trace only chunks that leave snapshots; most leave the state at their end alone."""
        used = super().plan_states(table, start, end)
        states = table.states
        num_snapshots = 0 if states is None else sum(each.end > start for each in states.pending)
        if num_snapshots:
            with _span(self._tracer, "plan_states", table.name) as span:
                span.set_attributes({"quire.num_snapshots": num_snapshots})
        return used

    def advance(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        with _span(self._tracer, "advance", table.name) as span:
            span.set_attribute("quire.num_computed_tokens", num_computed)
            super().advance(table, token_ids, num_computed)
            span.set_attribute("quire.num_sealed_blocks", table.num_cached_blocks)

    def swap_out(self, table: BlockTable, num_computed: int) -> bool:
        with _span(self._tracer, "swap_out", table.name) as span:
            is_kept = super().swap_out(table, num_computed)
            span.set_attributes(
                {"quire.num_computed_tokens": num_computed, "quire.is_short": not is_kept}
            )
            return is_kept

    def forget(self, table: BlockTable) -> None:
        """Trace only tables that were swapped out; most never were."""
        if table.swap is None:
            return
        with _span(self._tracer, "forget", table.name) as span:
            span.set_attribute("quire.num_blocks", len(table.swap.keys) + len(table.swap.private))
            super().forget(table)

    def fork(
        self, source: BlockTable, table: BlockTable, num_tokens: int, *, keep_free: int = 0
    ) -> bool | BlocksMissing:
        with _span(self._tracer, "fork", table.name) as span:
            forked = super().fork(source, table, num_tokens, keep_free=keep_free)
            span.set_attribute("quire.num_tokens", num_tokens)
            span.set_attribute("quire.is_short", isinstance(forked, BlocksMissing))
            return forked

    def release(self, table: BlockTable) -> None:
        with _span(self._tracer, "release", table.name) as span:
            span.set_attribute("quire.num_blocks", _num_held(table))
            super().release(table)

    def reset(self) -> None:
        with _span(self._tracer, "reset") as span:
            span.set_attribute("quire.num_cached_blocks", self.usage.cached)
            super().reset()


def check_tracing(endpoint: str | None) -> None:
    """Check before a model is loaded. Raises ValueError for an endpoint without an exporter."""
    if endpoint is None:
        return
    try:
        for module in NEEDED:
            import_module(module)
    except ImportError as error:
        raise ValueError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({error}). It is installed with the extra "
            f"`otel`: {how_to_install('otel')}"
        ) from None


def open_tracing(endpoint: str) -> Tracing:
    """Return a tracer that sends spans to `endpoint` in batches, from a thread of its own. Spans
    are dropped while its queue is full.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(
        resource=Resource.create({"service.name": "quire"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))

    def close() -> None:
        """Export in a thread: the provider itself waits up to half a minute for a collector."""
        flush = Thread(target=provider.shutdown, name="trace flush", daemon=True)
        flush.start()
        flush.join(MAX_FLUSH_S)

    return Tracing(provider.get_tracer("quire"), close)


def _num_held(table: BlockTable) -> int:
    """Return how many blocks the table holds in all groups."""
    return sum(map(len, table.block_ids)) - sum(table.num_passed)


def _span(tracer: "Tracer", verb: str, name: str = "") -> "AbstractContextManager[Span]":
    """Open the span of a call, for the request whose id is `name` if it is for one."""
    attributes = {"quire.request_id": name} if name else None
    return tracer.start_as_current_span(f"kv_cache.{verb}", attributes=attributes)
