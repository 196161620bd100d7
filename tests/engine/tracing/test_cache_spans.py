"""Each change of the accounts of blocks has a span with the id of the request that it was for: all
there is to call of a traced cache is called at random.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from quire.cache.admission import BlocksMissing
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.pins import Pins
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.cache.transfers import BlockPosition, Transfers
from quire.engine.tracing import TracedKVCache, TracedPins

CHUNK = 6
CONFIG = CacheConfig(
    num_blocks=24,
    block_size=2,
    groups=(FULL, AttentionPattern(AttentionType.SLIDING, 4)),
    max_chunk_tokens=CHUNK,
    num_host_blocks=8,
    enable_kv_cache_events=True,
)
NUM_CALLS = 4000
SPAN_OF = {
    **{verb: verb for verb in ("admit", "grow", "advance", "release", "swap_out", "forget")},
    **{verb: verb for verb in ("fork", "reset")},
    **{"pins.pin": "pin", "pins.unpin": "unpin", "pins.clear": "unpin"},
    "transfers.take_in": "take_in",
}
"""Each call that changes the accounts, with the span that says so."""


@dataclass(eq=False)
class Live:
    """A request whose blocks hold the tokens up to `end`, of which `num_computed` are computed."""

    table: BlockTable
    tokens: list[int]
    num_computed: int
    end: int


class Walk:
    """Makes random calls. After each: if it changed the accounts, spans tell of it and of the
    request; if it is no change of the accounts, none does."""

    def __init__(self, cache: KVCache, spans: InMemorySpanExporter, seed: int) -> None:
        self.cache = cache
        self.spans = spans
        self.random = random.Random(seed)
        self.live: list[Live] = []
        self.swapped: list[Live] = []
        self.num_changes: Counter[str] = Counter()
        self.num_tables = 0

    def accounts(self) -> tuple[object, ...]:
        cache = self.cache
        return cache.usage, cache.host_usage, bytes(cache.block_states), cache.pins.num_blocks

    @contextmanager
    def calls(self, call: str, request_id: str | None = None) -> Iterator[None]:
        self.spans.clear()
        before = self.accounts()
        yield
        if self.accounts() == before:
            return
        self.num_changes[call] += 1
        told = self.spans.get_finished_spans()
        assert f"kv_cache.{SPAN_OF.get(call)}" in {span.name for span in told}, call
        if request_id is not None:
            ids = {(span.attributes or {}).get("quire.request_id") for span in told}
            assert ids == {request_id}, call

    def some_tokens(self) -> list[int]:
        """Many prompts begin alike."""
        num_alike = self.random.randrange(12)
        return [0] * num_alike + self.random.choices((0, 1), k=self.random.randrange(1, 8))

    def open_table(self) -> BlockTable:
        self.num_tables += 1
        return self.cache.open_table(name=f"r{self.num_tables}")

    def pick(self, requests: list[Live]) -> Live | None:
        return self.random.choice(requests) if requests else None

    @property
    def between_steps(self) -> list[Live]:
        return [live for live in self.live if 0 < live.num_computed == live.end]

    def admit(self) -> None:
        live = self.pick(self.swapped) if self.random.random() < 0.5 else None
        if live is None:
            live = Live(self.open_table(), self.some_tokens(), 0, 0)
        with self.calls("admit", live.table.name):
            found = self.cache.admit(live.table, live.tokens)
        if not isinstance(found, BlocksMissing):
            self.swapped = [each for each in self.swapped if each is not live]
            self.begin(live, found)

    def begin(self, live: Live, num_computed: int) -> None:
        live.num_computed = num_computed
        live.end = min(len(live.tokens), num_computed + CHUNK)
        self.live.append(live)

    def grow(self) -> None:
        live = self.pick(self.between_steps)
        if live is None:
            return
        live.tokens += self.random.choices((0, 1), k=self.random.randrange(1, 4))
        end = min(len(live.tokens), live.num_computed + CHUNK)
        with self.calls("grow", live.table.name):
            grown = self.cache.grow(live.table, live.num_computed, end)
        if grown is not None:
            live.end = end

    def advance(self) -> None:
        live = self.pick([live for live in self.live if live.num_computed < live.end])
        if live is not None:
            live.num_computed = live.end
            with self.calls("advance", live.table.name):
                self.cache.advance(live.table, live.tokens, live.num_computed)

    def release(self) -> None:
        live = self.pick(self.live)
        if live is not None:
            with self.calls("release", live.table.name):
                self.cache.release(live.table)
            self.live.remove(live)

    def swap_out(self) -> None:
        live = self.pick(self.between_steps)
        if live is None:
            return
        with self.calls("swap_out", live.table.name):
            is_kept = self.cache.swap_out(live.table, live.num_computed)
        if is_kept:
            self.live.remove(live)
            live.tokens.append(0)
            self.swapped.append(live)

    def forget(self) -> None:
        live = self.pick(self.swapped)
        if live is not None:
            with self.calls("forget", live.table.name):
                self.cache.forget(live.table)
            self.swapped.remove(live)

    def fork(self) -> None:
        source = self.pick(self.between_steps)
        if source is None:
            return
        num_tokens = self.random.randrange(1, source.num_computed + 1)
        live = Live(self.open_table(), [*source.tokens[:num_tokens], 1], 0, 0)
        with self.calls("fork", live.table.name):
            is_forked = self.cache.fork(source.table, live.table, num_tokens)
        if is_forked is True:
            self.begin(live, num_tokens)

    def reset(self) -> None:
        if not self.random.randrange(10):
            with self.calls("reset"):
                self.cache.reset()

    def pin(self) -> None:
        live = self.pick(self.between_steps)
        if live is not None:
            name, tokens = self.random.choice("abc"), live.tokens[: live.num_computed]
            with self.calls("pins.pin", name):
                self.cache.pins.pin(name, self.open_table(), tokens, max_blocks=6)

    def unpin(self) -> None:
        name = self.random.choice("abc")
        with self.calls("pins.unpin", name):
            self.cache.pins.unpin(name)

    def clear(self) -> None:
        if not self.random.randrange(10):
            with self.calls("pins.clear"):
                self.cache.pins.clear()

    def take_in(self) -> None:
        transfers, table, tokens = self.cache.transfers, self.open_table(), self.some_tokens()
        table.chain.extend(tokens)
        with self.calls("transfers.find"):
            missing = transfers.find(table.chain, len(tokens) // 2, lambda key: True).missing
        with self.calls("transfers.take_in", table.name):
            transfers.take_in(table.chain, missing, table.name)

    def read(self) -> None:
        """All that is left changes nothing that is counted."""
        cache, pins, transfers = self.cache, self.cache.pins, self.cache.transfers
        table, tokens = self.open_table(), self.some_tokens()
        table.chain.extend(tokens)
        digests = table.chain.digests or [b""]
        readers: dict[str, Callable[[], object]] = {
            "open_table": cache.open_table,
            "max_blocks": lambda: cache.max_blocks(9),
            "recompute_cost": lambda: [
                cache.recompute_cost(live.table, live.num_computed) for live in self.between_steps
            ],
            "prefix_recompute_cost": lambda: cache.prefix_recompute_cost(1),
            "swap_point": lambda: [
                cache.swap_point(live.table, live.num_computed) for live in self.between_steps
            ],
            "num_cached": lambda: cache.num_cached(table, tokens),
            "block_keys": lambda: cache.block_keys(table, tokens),
            "explain_miss": lambda: cache.explain_miss(table, tokens, 0),
            "plan_states": lambda: cache.plan_states(table, 0, 1),
            "will_find": lambda: cache.will_find(table, 0),
            "take_kv_events": cache.take_kv_events,
            "take_block_copies": cache.take_block_copies,
            "check": cache.check,
            "pins.states": pins.states,
            "pins.holders": lambda: list(pins.holders()),
            "pins.held_states": pins.held_states,
            "pins.num_new": lambda: pins.num_new(table, tokens),
            "transfers.watch": lambda: transfers.watch(lambda content, group: None),
            "transfers.is_here": lambda: transfers.is_here(BlockPosition(0, 0, digests[0])),
            "transfers.row_of": lambda: (
                transfers.row_of(table.chain.content(0), 0) if table.chain.digests else None
            ),
            "transfers.find": lambda: transfers.find(table.chain, 1, lambda key: False),
        }
        assert SPAN_OF.keys() | readers.keys() == set(public_calls())
        for name, reads in readers.items():
            with self.calls(name):
                reads()
        with self.calls("properties"):
            for each in (cache, pins, transfers):
                for name in dir(type(each)):
                    if isinstance(getattr_static(type(each), name), property):
                        getattr(each, name)

    def run(self) -> None:
        steps = (
            *(self.admit, self.grow, self.advance, self.release, self.swap_out, self.forget),
            *(self.fork, self.reset, self.pin, self.unpin, self.clear, self.take_in, self.read),
        )
        for _ in range(NUM_CALLS):
            self.random.choice(steps)()


def public_calls() -> Iterator[str]:
    """The names of all that can be called of a cache, and of what it shows of itself."""
    for prefix, part in (("", KVCache), ("pins.", Pins), ("transfers.", Transfers)):
        for name, value in vars(part).items():
            if callable(value) and not name.startswith("_"):
                yield prefix + name


def walk_over(make: Callable[[CacheConfig, Tracer], KVCache], seed: int = 0) -> Walk:
    spans, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    walk = Walk(make(CONFIG, provider.get_tracer("test")), spans, seed)
    walk.run()
    return walk


@pytest.mark.parametrize("seed", range(3))
def test_every_change_of_the_accounts_has_a_span_that_names_the_request(seed: int) -> None:
    walk = walk_over(TracedKVCache, seed)
    assert walk.num_changes.keys() == SPAN_OF.keys(), "all that changes them was seen to"


@pytest.mark.parametrize("untraced", [*(name for name in SPAN_OF if "." not in name), "transfers"])
def test_a_call_without_a_span_is_seen(untraced: str) -> None:
    faulty = type("Faulty", (TracedKVCache,), {untraced: getattr_static(KVCache, untraced)})
    with pytest.raises(AssertionError, match=untraced):
        walk_over(faulty)


@pytest.mark.parametrize("untraced", ["pin", "unpin"])
def test_a_pin_without_a_span_is_seen(untraced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TracedPins, untraced, getattr(Pins, untraced))
    with pytest.raises(AssertionError, match="pins"):
        walk_over(TracedKVCache)


def test_a_chunk_that_leaves_snapshots_has_a_span_and_pins_hold_them() -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    cache = TracedKVCache(CacheConfig(24, 2, num_states=9), provider.get_tracer("test"))
    table, tokens = cache.open_table(name="r"), [0, 1, 0, 1, 1]
    assert cache.admit(table, tokens) == 0
    assert cache.plan_states(table, 0, 1) is not None
    assert "kv_cache.plan_states" not in {span.name for span in spans.get_finished_spans()}
    assert cache.plan_states(table, 1, 5) is not None
    (planned,) = (each for each in spans.get_finished_spans() if "plan_states" in each.name)
    assert (planned.attributes or {})["quire.request_id"] == "r"
    assert int(str((planned.attributes or {})["quire.num_snapshots"])) >= 1
    cache.advance(table, tokens, 5)
    assert cache.pins.pin("r", cache.open_table(), tokens[:4], max_blocks=9) == 2
    assert len(cache.pins.held_states()) == 1
    cache.release(table)
    cache.check()
