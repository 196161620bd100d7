"""A second, naive engine: it implements the client's surface and draws what a script says.

By default it repeats the prompt's tokens, so that a test can say what text must come out.
"""

import asyncio
import contextlib
import os
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import TypeAlias

from quire.cache.kv_events import KVEvent
from quire.cache.sharing import SharingTerms
from quire.engine.config import EngineConfig
from quire.engine.messages import (
    EmbeddingFacts,
    EngineFacts,
    EngineOutput,
    LayerGroupFacts,
    MemoryFacts,
    ReceiptLine,
    ScoreFacts,
)
from quire.engine.orders import Answer, NoteTurn, Order, Question, ResetPrefixCache, Unpin, Watch
from quire.engines.process.client import EnginePhase
from quire.engines.process.flight_ring import FlightRing
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream
from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, PoolingKind, TokenLogprobs
from quire.scheduler.step import NO_REPLICAS, NO_STATS, Delta, Finish, PrefillProgress, Refusal
from quire.scheduler.usage.ledger import UsageLedger

Script: TypeAlias = Callable[[NewRequest], Iterator[int]]

BLOCK_SIZE = 16
FAILURES = {-1: Reason.NOT_FINITE, -2: Reason.GRAMMAR_FAILED, -3: Reason.STEP_FAILED}
"""What a script draws where an output fails."""
NUM_BLOCKS = 1000

FACTS = EngineFacts(
    model_type="scripted",
    dtype="float32",
    device="cpu",
    vocab_size=2048,
    max_model_len=256,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    block_size=BLOCK_SIZE,
    num_blocks=NUM_BLOCKS,
    num_host_blocks=0,
    eos_token_ids=(1, 0),
    receipt=(ReceiptLine("weights", 1000), ReceiptLine("kv_cache", 2000)),
    memory=MemoryFacts(
        kv_dtype="int8",
        kv_tokens=(NUM_BLOCKS - 1) * BLOCK_SIZE,
        kv_token_bytes=2,
        layer_groups=(LayerGroupFacts("full_attention", None, 3),),
        padding_share=0.0,
        max_model_len_fits=256,
        max_concurrency=62.4375,
        why_num_blocks="all that memory allows",
        why_max_num_batched_tokens="as --max-num-batched-tokens says",
        passed_token_bytes=2,
    ),
    startup_s={"load": 0.5},
    embeddings=EmbeddingFacts(PoolingKind.LAST, is_normalized=True, size=8, max_len=200),
    scores=ScoreFacts(is_sigmoid=True),
)


def repeat_prompt(request: NewRequest) -> Iterator[int]:
    return cycle([id for id in request.prompt_token_ids if id not in FACTS.eos_token_ids])


def logprobs_of(token_id: int, num_top: int) -> TokenLogprobs:
    """Made-up numbers that a test can compute again; the likeliest tokens are others than drawn."""
    top = tuple((token_id + 1 + rank, -0.5 - rank) for rank in range(num_top))
    return TokenLogprobs(token_id, -token_id / 1000, top, num_top + 7)


def vector_of(request: NewRequest) -> bytes:
    """Made-up numbers that tell prompts and ways of pooling apart."""
    assert request.pooling is not None
    is_score = request.pooling.kind is PoolingKind.CLS
    size = 1 if is_score else request.pooling.num_dimensions or 8
    last, factor = request.prompt_token_ids[-1], 0.5 if request.pooling.is_normalized else 3.0
    return array("f", [factor * (last + index) for index in range(size)]).tobytes()


@dataclass
class Live:
    """A request between submit and its end."""

    request: NewRequest
    tokens: Iterator[int]
    stream: TokenStream
    drawn: list[int] = field(default_factory=list)
    timeline: list[Event] = field(default_factory=list)
    since_s: float = field(default_factory=time.monotonic)

    @property
    def is_late(self) -> bool:
        limit_s = self.request.time_limit_s
        return limit_s is not None and time.monotonic() - self.since_s > limit_s


class ScriptedEngine:
    """Runs a step only while `may_step` is set; `refuses` is the answer to the next submits, and
    `ready_facts` are its facts once it is loaded. A prompt that is to be pinned ends so as `pins`
    says; `pinned` are those that are. `turns` are those that ended. `counted` are statistics of
    which it knows nothing."""

    def __init__(self, config: EngineConfig, subscriber: EngineSubscriber) -> None:
        self.config = config
        self.phase = EnginePhase.STARTING
        self.progress = ("process", 0, 1)
        self.facts: EngineFacts | None = None
        self.ready_facts = FACTS
        self.down_reason: str | None = None
        self.lacks_memory = False
        self.stats_by_replica = NO_REPLICAS
        self.counted = NO_STATS
        self.ring: FlightRing | None = None
        self.script: Script = repeat_prompt
        self.refuses: Reason | None = None
        self.submitted: list[NewRequest] = []
        self._ledger = UsageLedger()
        self.aborted: list[str] = []
        self.num_resets = 0
        self.probed: list[tuple[tuple[int, ...], SharingTerms]] = []
        self.probe_answer = PrefixProbe(0, 0, None)
        self.pins = Reason.PINNED
        self.pinned: list[str] = []
        self.turns: list[NoteTurn] = []
        self.watched: list[float | None] = []
        self.process_id: int | None = os.getpid()
        self.standby_id: int | None = None
        self.wait_s: float | None = None
        self.progress_age_s = 0.0
        self.starts = asyncio.Event()
        self.may_step = asyncio.Event()
        self._live: dict[str, Live] = {}
        self._news: list[tuple[str, Event]] = []
        self._on_output = subscriber.on_output
        self._num_drawn = 0
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self.starts.set()
        self.may_step.set()

    @property
    def processes(self) -> "tuple[ScriptedEngine]":
        return (self,)

    @property
    def num_unfinished(self) -> int:
        return len(self._live)

    def last_progress_age_s(self) -> float:
        return self.progress_age_s

    async def start(self) -> None:
        self.phase = EnginePhase.LOADING
        self.progress = ("weights", 1, 2)
        self._loop = asyncio.create_task(self._run())

    def submit(self, request: NewRequest) -> TokenStream:
        if self.phase is not EnginePhase.READY:
            raise EngineDown(self.down_reason or "not ready")
        if self.refuses is not None:
            raise RequestRefused(
                Refusal(request.id, self.refuses, "refused by the script", None, self.wait_s)
            )
        stream = TokenStream(request.id)
        self.submitted.append(request)
        live = Live(request, self.script(request), stream)
        self._note(live, Reason.QUEUED, len(self._live))
        self._live[request.id] = live
        self.tell()
        self._work.set()
        asyncio.get_running_loop().call_soon(stream.accept)
        return stream

    def abort(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is not None:
            self.aborted.append(request_id)
            delta = Delta(request_id, (), finish=self._finish(live, Reason.ABORTED, 0))
            live.stream.put(delta)
            self._report((delta,))

    async def ask(self, question: Question) -> Answer:
        if self.refuses is not None:
            raise RequestRefused(Refusal("question-1", self.refuses, "refused by the script"))
        self.probed.append((question.token_ids, question.sharing))
        return self.probe_answer

    def order(self, order: Order) -> None:
        """Frames for who watches are for the test to tell."""
        if isinstance(order, ResetPrefixCache):
            self.num_resets += 1
            self.pinned.clear()
        elif isinstance(order, Watch):
            self.watched.append(order.interval_s)
        elif isinstance(order, NoteTurn):
            self.turns.append(order)
        elif isinstance(order, Unpin) and order.request_id in self.pinned:
            self.pinned.remove(order.request_id)

    def tell(
        self,
        events: tuple[tuple[str, Event], ...] = (),
        kv_events: tuple[KVEvent, ...] = (),
        live: LiveFrame | None = None,
    ) -> None:
        """A report of a turn without a step."""
        self._news += events
        self._report((), kv_events, live)

    def _note(self, live: Live, reason: Reason, number: int = 0) -> None:
        event = Event(time.monotonic(), reason, number)
        live.timeline.append(event)
        self._news.append((live.request.id, event))

    def die(self, reason: str) -> None:
        self.phase = EnginePhase.DOWN
        self.down_reason = reason
        for live in self._live.values():
            live.stream.fail(reason)
        self._live.clear()

    async def close(self) -> None:
        self.die(self.down_reason or "it was closed")
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop

    async def _run(self) -> None:
        await self.starts.wait()
        self.facts = self.ready_facts
        self.phase = EnginePhase.READY
        while True:
            await self._work.wait()
            await self.may_step.wait()
            self._step()
            await asyncio.sleep(0)

    def _step(self) -> None:
        deltas = [self._draw(live) for live in list(self._live.values())]
        for delta in deltas:
            if delta.finish is not None:
                del self._live[delta.request_id]
        if not self._live:
            self._work.clear()
        self._report(tuple(deltas))

    def _draw(self, live: Live) -> Delta:
        request = live.request
        if live.is_late:
            delta = Delta(request.id, (), finish=self._finish(live, Reason.DEADLINE_EXCEEDED, 0))
            live.stream.put(delta)
            return delta
        if request.pooling is not None:
            self._use(request, prompt=True)
            ended = self._finish(live, Reason.PROMPT_COMPUTED, 0)
            delta = Delta(request.id, (), finish=ended, vector=vector_of(request))
            live.stream.put(delta)
            return delta
        if request.pins_prompt:
            return self._pin(live)
        sampling = request.sampling
        token_id = next(live.tokens)
        self._use(request, prompt=not live.drawn, num_outputs=1)
        if not live.drawn:
            self._note(live, Reason.ADMITTED, 3)
            self._note(live, Reason.FIRST_TOKEN)
        live.drawn.append(token_id)
        self._num_drawn += 1
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.num_logprobs is not None:
            scores = logprobs_of(token_id, sampling.num_logprobs)
            named = tuple((each, -each / 1000) for each in sampling.logprob_token_ids)
            logprobs = (scores._replace(top=scores.top + named),)
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if request.prompt_logprobs is not None and len(live.drawn) == 1:
            ids = request.prompt_token_ids[1:]
            prompt_logprobs = tuple(logprobs_of(id, request.prompt_logprobs) for id in ids)
        reason = self._reason(live, token_id)
        finish = None if reason is None else self._finish(live, reason, token_id)
        is_told = request.reports_prefill and len(live.drawn) == 1
        prefill = PrefillProgress(len(request.prompt_token_ids), 0) if is_told else None
        delta = Delta(request.id, (token_id,), logprobs, prompt_logprobs, finish, prefill)
        live.stream.put(delta)
        return delta

    def _use(self, request: NewRequest, *, prompt: bool, num_outputs: int = 0) -> None:
        for account in self._ledger.accounts(request.tenant):
            account.num_prompt_tokens += prompt * len(request.prompt_token_ids)
            account.num_prefix_hits += prompt * 3
        self._ledger.open(request.tenant).num_tokens += num_outputs
        self._ledger.close(request.tenant)

    def _pin(self, live: Live) -> Delta:
        self._use(live.request, prompt=True)
        self._note(live, self.pins, len(live.request.prompt_token_ids) // BLOCK_SIZE)
        if self.pins is Reason.PINNED:
            self.pinned.append(live.request.id)
        ended = self._finish(live, Reason.PROMPT_COMPUTED, 0)
        delta = Delta(live.request.id, (), finish=ended)
        live.stream.put(delta)
        return delta

    def _reason(self, live: Live, token_id: int) -> Reason | None:
        stopping = live.request.stopping
        if token_id in FAILURES:
            return FAILURES[token_id]
        if len(live.drawn) > stopping.min_tokens:
            if token_id in stopping.eos_token_ids:
                return Reason.END_OF_SEQUENCE
            if token_id in stopping.stop_token_ids:
                return Reason.STOP_TOKEN
        return Reason.MAX_TOKENS if len(live.drawn) >= stopping.max_tokens else None

    def _finish(self, live: Live, reason: Reason, token_id: int) -> Finish:
        num_prompt = len(live.request.prompt_token_ids)
        self._note(live, reason, token_id)
        timeline = tuple(live.timeline)
        num_drawn = len(live.drawn)
        num_cached = 3 if live.request.fork_of is None else num_prompt - 1
        return Finish(
            reason, token_id, num_prompt, num_drawn, num_cached, 0, 0.25, 0.5, 0.75, timeline
        )

    def _report(
        self,
        deltas: tuple[Delta, ...],
        kv_events: tuple[KVEvent, ...] = (),
        live: LiveFrame | None = None,
    ) -> None:
        num_active = sum(
            (len(live.request.prompt_token_ids) + len(live.drawn)) // BLOCK_SIZE + 1
            for live in self._live.values()
        )
        stats = self.counted._replace(
            num_running=self.num_unfinished,
            num_blocks_free=NUM_BLOCKS - num_active,
            num_blocks_active=num_active,
            num_prompt_tokens=sum(len(each.prompt_token_ids) for each in self.submitted),
            num_generation_tokens=self._num_drawn,
            num_recent_queries=8,
            num_recent_hits=2,
            num_misses_evicted=3,
        )
        events, self._news = tuple(self._news), []
        num_tokens = sum(len(delta.token_ids) for delta in deltas)
        self._on_output(
            EngineOutput(
                *(1, num_tokens, 0.001, (), (), deltas, stats, events, kv_events),
                live=live,
                usage=self._ledger.take(),
            )
        )
