"""A recorded scheduler under random inputs, with results out of thin air."""

import os
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from quire.cache.block_copies import CopyKind, CopyTime
from quire.cache.block_hash import BlockHash
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.engine.recording.recorded_scheduler import RecordedScheduler
from quire.engine.recording.recorder import FlightRecorder, RecordedConfig
from quire.engine.recording.replayed_scheduler import shape_of
from quire.engine.recording.ring import RingWriter, create_ring, read_ring
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.scheduler.reasons import LoadSource, Reason
from quire.scheduler.request import (
    Event,
    NewRequest,
    ResumedOutput,
    Sampling,
    Stopping,
    TokenLogprobs,
)
from quire.scheduler.step import Step, StepResult

EOS, STOP = 5, 6
BETWEEN = (CopyKind.OUT, CopyKind.IN)
TOKENS = st.sampled_from([0, 1, 0, 1, 0, 1, 0, 1, EOS, STOP])
KINDS = [
    *(*["step"] * 5, *["add"] * 4, "resume", "abort"),
    *("ready", "reset", "unpin", "load", "charge"),
]
WINDOW = AttentionPattern(AttentionType.SLIDING, 3)
CHUNKS = AttentionPattern(AttentionType.CHUNKED, 4)

cache_configs = st.builds(
    CacheConfig,
    num_blocks=st.integers(14, 40),
    block_size=st.sampled_from([1, 2, 4]),
    enable_prefix_caching=st.sampled_from([True, True, True, False]),
    groups=st.sampled_from([(FULL,), (FULL, WINDOW), (FULL, CHUNKS, WINDOW)]),
    max_chunk_tokens=st.just(16),
    num_host_blocks=st.sampled_from([0, 6, 30]),
    num_states=st.sampled_from([0, 0, 3, 12]),
    num_host_states=st.sampled_from([0, 4]),
)
scheduler_configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(5, 16),
    max_model_len=st.just(24),
    max_num_queued_reqs=st.integers(0, 5),
    watermark=st.sampled_from([0.0, 0.1]),
    scheduling_policy=st.sampled_from(PolicyName),
    queue_order=st.sampled_from(QueueOrder),
    max_skips=st.integers(0, 3),
    preemption_mode=st.sampled_from(PreemptionMode),
    wait_for_prefix=st.booleans(),
)
prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple),
    st.integers(1, 16).map(lambda length: (7,) * length),
)
charges = st.dictionaries(st.sampled_from("abc"), st.floats(0.5, 50.0), max_size=3)


@st.composite
def news(draw: st.DrawFn, number: int, known: list[NewRequest]) -> NewRequest:
    """A request; some fork, and some go on where an earlier prompt ended."""
    source = draw(st.sampled_from([None, *known[-4:]]))
    prompt = draw(prompts) if source is None or draw(st.booleans()) else source.prompt_token_ids
    max_tokens = draw(st.integers(0, 10))
    return NewRequest(
        f"r{number}",
        prompt,
        Sampling(),
        Stopping(max_tokens, draw(st.integers(0, 3)), (EOS,), (STOP,)),
        sharing=SharingTerms(draw(st.sampled_from([b"", b"", b"salt"]))),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        weight=draw(st.sampled_from([1.0, 3.0])),
        priority=draw(st.integers(0, 2)),
        time_limit_s=draw(st.sampled_from([None, None, None, 2.0, 9.0])),
        fork_of=None if source is None or draw(st.booleans()) else source.id,
        reports_prefill=draw(st.booleans()),
        pins_prompt=max_tokens == 0 and draw(st.booleans()),
    )


@dataclass
class Inputs:
    """Gives random inputs to a scheduler; a step may be updated after the next was scheduled. One
    that `is_fair` is told of other engines."""

    data: st.DataObject
    scheduler: RecordedScheduler
    cache: KVCache
    now: float = 100.0
    known: list[NewRequest] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    is_fair: bool = False

    def give(self) -> None:
        """Give one input, or the two or three of a step."""
        draw, scheduler = self.data.draw, self.scheduler
        self.now += draw(st.sampled_from([0.001, 0.1, 1.0]))
        kind = draw(st.sampled_from(KINDS))
        if kind == "add":
            new = draw(news(len(self.known), self.known))
            self.known.append(new)
            scheduler.add(new, self.now, is_ready=draw(st.sampled_from([True, True, False])))
        elif kind == "abort" and self.known:
            scheduler.abort(draw(st.sampled_from(self.known)).id, self.now)
        elif kind == "ready" and self.known:
            scheduler.make_ready(draw(st.sampled_from(self.known[-4:])).id)
        elif kind == "reset" and draw(st.integers(0, 3)) == 0:
            scheduler.reset_prefix_cache()
        elif kind == "unpin" and self.known:
            scheduler.unpin(draw(st.sampled_from(self.known)).id)
        elif kind == "charge" and self.is_fair:
            scheduler.charge(draw(charges))
        elif kind == "load" and self.known:
            self.load(draw(st.sampled_from(self.known[-4:])).id)
        elif kind == "resume":
            self.resume()
        elif kind == "step":
            self.step()

    def load(self, request_id: str) -> None:
        """Let a request wait for a slower store, take blocks in, or let it go on."""
        scheduler, kind = self.scheduler, self.data.draw(st.integers(0, 2))
        asked = scheduler.loads.chain_of(request_id)
        if asked is None:
            return
        if kind == 0:
            scheduler.loads.begin(request_id, self.data.draw(st.sampled_from(LoadSource)))
        elif kind == 1:
            chain, max_blocks = asked
            found = scheduler.transfers.find(chain, max_blocks, lambda key: True)
            scheduler.transfers.take_in(chain, found.missing)
            self.cache.take_block_copies()
        else:
            scheduler.loads.end(request_id, 4, self.now)

    def resume(self) -> None:
        """Resume a request that another engine had."""
        draw = self.data.draw
        new = draw(news(len(self.known), self.known))
        self.known.append(new)
        outputs = (
            draw(st.lists(TOKENS, max_size=new.stopping.max_tokens))
            if len(new.prompt_token_ids) < 14
            else []
        )
        events = [Event(self.now - 1, Reason.QUEUED, 0)]
        if outputs:
            events += [Event(self.now, Reason.ADMITTED, 1), Event(self.now, Reason.FIRST_TOKEN, 0)]
        num_scored = draw(st.integers(1, len(new.prompt_token_ids)))
        resumed = ResumedOutput(
            tuple(outputs), num_scored, tuple(events[draw(st.integers(0, 1)) :])
        )
        self.scheduler.resume(new, resumed, self.now, is_ready=draw(st.booleans()))

    def step(self) -> None:
        self.steps.append(self.scheduler.schedule(self.now))
        late = self.data.draw(st.booleans())
        while len(self.steps) > late:
            self.now += self.data.draw(st.sampled_from([0.001, 0.02]))
            step = self.steps.pop(0)
            self.scheduler.update(step, self.result(step), self.now)

    def result(self, step: Step) -> StepResult:
        draw = self.data.draw
        chunks = [chunk for chunk in step.chunks if chunk.samples]
        forced = {
            chunk.request_id: tuple(draw(st.lists(TOKENS, min_size=1, max_size=3)))
            for chunk in chunks
            if draw(st.integers(0, 5)) == 0
        }
        num_copies = sum(copy.kind in BETWEEN for copy in step.block_copies)
        num_states = sum(copy.kind.is_of_state for copy in step.block_copies)
        failed = [chunk.request_id for chunk in chunks if draw(st.integers(0, 20)) == 20]
        score = TokenLogprobs(0, 0.0, ())
        scores = {
            chunk.request_id: (score,) * chunk.num_tokens
            for chunk in step.chunks
            if chunk.start == 0 and draw(st.booleans())
        }
        return StepResult(
            step.number,
            tuple(draw(TOKENS) for _ in chunks),
            forced,
            prompt_logprobs=scores,
            not_finite=frozenset(failed[:1]),
            grammar_failed=frozenset(failed[1:]),
            copy_time=CopyTime(
                num_copies, 0.003 * num_copies, 0.001 * num_copies, num_states, 0.002 * num_states
            ),
        )


class Recorded:
    """A recorded scheduler and what its ring holds. With `segment_s` 0 each step begins a
    segment."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, segment_s: float = 1e9) -> None:
        self._fd = create_ring()
        ring = RingWriter(self._fd)
        self.recorder = FlightRecorder(
            ring,
            RecordedConfig(config, shape_of(cache)),
            BlockHash(b"root"),
            lambda: 1.7e9,
            minutes=segment_s * 7 / 60,
        )
        self.cache = KVCache(replace(cache, block_hash=self.recorder.block_hash))
        self.scheduler = RecordedScheduler(config, self.cache, self.recorder)

    @property
    def segments(self) -> list[bytes]:
        return [segment.data for segment in read_ring(self._fd)]

    def close(self) -> None:
        os.close(self._fd)
