"""Random operations of a scheduler and its cache, with crashes at any of them, and the invariants
after each: balanced accounts, the right contents in every block that is read, each token once.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Step, StepResult
from tests.scheduler.crash_ops.bill import Bill
from tests.scheduler.crash_ops.clients import Clients
from tests.scheduler.crash_ops.paper_runner import VOCAB_SIZE, PaperRunner

MAX_MODEL_LEN = 48
OPERATIONS_PER_SHAPE = 500
"""After so many everything is brought to its end, and another shape is drawn."""
MAX_STEPS_TO_END = 20_000


@dataclass(frozen=True, slots=True)
class MachineShape:
    """What the engines of one life are built from: a new one has the limits of the old one."""

    cache: CacheConfig
    scheduler: SchedulerConfig
    is_late: bool


def draw_pattern(draw: random.Random) -> AttentionPattern:
    kind = draw.choice([None, AttentionType.SLIDING, AttentionType.CHUNKED])
    return FULL if kind is None else AttentionPattern(kind, draw.randint(1, 12))


def draw_shape(draw: random.Random) -> MachineShape:
    max_num_seqs = draw.randint(1, 6)
    budget = max_num_seqs + draw.choice([64, draw.randint(0, 20), draw.randint(0, 20)])
    groups = tuple(draw_pattern(draw) for _ in range(draw.choice([1, 1, 2, 3])))
    block_size = draw.randint(1, 6)
    num_largest = len(groups) * -(-MAX_MODEL_LEN // block_size)
    cache = CacheConfig(
        num_blocks=draw.randint(num_largest // 2 + 2, num_largest + 4),
        block_size=block_size,
        enable_prefix_caching=draw.random() < 0.8,
        groups=groups,
        max_chunk_tokens=budget,
        num_host_blocks=draw.choice([0, draw.randint(1, 40)]),
    )
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        max_num_queued_reqs=draw.choice([2, 10, 100]),
        watermark=draw.choice([0.0, 0.1]),
        scheduling_policy=draw.choice(list(PolicyName)),
        queue_order=draw.choice(list(QueueOrder)),
        priority_ageing_s=draw.choice([0.5, 1.0, 30.0]),
        max_skips=draw.randint(0, 3),
        preemption_mode=draw.choice(list(PreemptionMode)),
        wait_for_prefix=draw.random() < 0.5,
    )
    return MachineShape(cache, scheduler, is_late=draw.random() < 0.5)


@dataclass(slots=True)
class Unsent:
    """What the engine has to tell with its next message; it is lost with the engine."""

    accepted: list[NewRequest] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)


class CrashMachine:
    """Plays an engine's loop and the server on one scheduler after another. Steps may be late by
    one: the next is scheduled before the result of the one before has come."""

    def __init__(self, seed: int) -> None:
        self.num_done: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._num_requests = 0
        self._now = 0.0
        self._begin()

    def _begin(self) -> None:
        self._shape = draw_shape(self._draw)
        self._clients = Clients()
        self._bill = Bill()
        self._unanswered: list[NewRequest] = []
        self._start_engine()

    def _start_engine(self) -> None:
        self._cache = KVCache(self._shape.cache)
        self._scheduler = Scheduler(self._shape.scheduler, self._cache)
        self._runner = PaperRunner(self._shape.cache.groups, self._shape.cache.block_size)
        self._in_flight: tuple[Step, StepResult] | None = None
        self._unready: list[str] = []
        self._unsent = Unsent()
        self._clients.stats.append(self._scheduler.stats)

    def run(self, num_operations: int, report: Callable[[int], None] = lambda _: None) -> None:
        """Do so many operations, and after each shape's bring all to its end."""
        operations = {
            self._step: 60,
            self._add: 25,
            self._make_ready: 6,
            self._abort: 4,
            self._probe: 2,
            self._reset: 1,
            self._crash: 1,
        }
        names, weights = list(operations), list(operations.values())
        for number in range(1, num_operations + 1):
            (operation,) = self._draw.choices(names, weights)
            operation()
            self.num_done[operation.__name__.strip("_")] += 1
            self._check()
            if number % OPERATIONS_PER_SHAPE == 0 or number == num_operations:
                self._end_all()
                report(number)
                self._begin()

    def _add(self) -> None:
        self._num_requests += 1
        self._submit(self._draw_request(f"r{self._num_requests}"))

    def _draw_request(self, name: str) -> NewRequest:
        draw = self._draw
        sources = list(self._clients.of.values())
        new = NewRequest(
            name,
            tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 12))),
            Sampling(seed=draw.randrange(4)),
            Stopping(
                draw.choice([0, *range(1, 25)]), eos_token_ids=draw.choice([(), (), (), (0,)])
            ),
            sharing=SharingTerms(draw.choice([b"", b"", b"tenant"])),
            prompt_logprobs=draw.choice([None, None, None, 0]),
            tenant=draw.choice(["", "a", "b"]),
            weight=draw.choice([1.0, 0.5, 4.0]),
            priority=draw.randint(-2, 2),
            time_limit_s=draw.choice([None, None, float(draw.randint(1, 200))]),
            reports_prefill=draw.random() < 0.2,
            target_ttft_s=draw.choice([None, None, 0.5, 5.0, 50.0]),
            target_itl_s=draw.choice([None, None, 0.5, 3.0, 30.0]),
        )
        if not sources or draw.random() < 0.4:
            return new
        source = draw.choice(sources[-12:]).new
        prompt = (source.prompt_token_ids + new.prompt_token_ids)[: draw.randint(1, 22)]
        fork_of = None
        if draw.random() < 0.4:
            prompt, fork_of = source.prompt_token_ids, source.id
        return replace(new, prompt_token_ids=prompt, sharing=source.sharing, fork_of=fork_of)

    def _submit(self, new: NewRequest) -> None:
        is_ready = self._draw.random() < 0.9
        if self._scheduler.add(new, self._now, is_ready=is_ready) is not None:
            self._unsent.refused.append(new.id)
            self.num_done["refused"] += 1
            return
        self._unsent.accepted.append(new)
        if not is_ready:
            self._unready.append(new.id)

    def _make_ready(self) -> None:
        if self._unready:
            self._scheduler.make_ready(self._unready.pop(self._draw.randrange(len(self._unready))))

    def _abort(self) -> None:
        waiting = self._clients.waiting
        if waiting:
            request_id = self._draw.choice(waiting).new.id
            self._clients.gone.add(request_id)
            delta = self._scheduler.abort(request_id, self._now)
            if delta is not None:
                self._unsent.deltas.append(delta)

    def _probe(self) -> None:
        waiting = self._clients.waiting
        if waiting:
            new = self._draw.choice(waiting).new
            probe = self._scheduler.probe(new.prompt_token_ids, new.sharing)
            assert probe.num_cached <= len(new.prompt_token_ids)

    def _reset(self) -> None:
        self._scheduler.reset_prefix_cache()

    def _step(self) -> None:
        self._launch()
        self._send()

    def _launch(self) -> None:
        """Schedule a step and compute it; take in the result of the one before, and of this one
        too unless it may be late."""
        self._pass_time(3)
        step = self._scheduler.schedule(self._now)
        result = self._runner.run(step)
        self._pass_time(2)
        before, self._in_flight = self._in_flight, (step, result)
        if before is not None:
            self._update(*before)
        if not (self._shape.is_late and step.chunks and self._draw.random() < 0.8):
            self._update(step, result)
            self._in_flight = None

    def _pass_time(self, most_s: int) -> None:
        seconds = self._draw.randint(0, most_s)
        self._bill.pass_time(seconds, self._scheduler.stats, self._cache.host_usage.promised)
        self._now += seconds

    def _update(self, step: Step, result: StepResult) -> None:
        self._unsent.deltas += self._scheduler.update(step, result, self._now)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, Unsent()
        for new in unsent.accepted:
            self._clients.accept(new)
        self._clients.take(unsent.deltas, self._scheduler.take_events())
        self._clients.stats[-1] = self._scheduler.stats
        self._bill.take(self._scheduler.usage.take(self._now))

    def _crash(self) -> None:
        """End the engine between two messages, or with a step under way, or before what it gave is
        sent; another goes on. What was not answered is sent to it again."""
        if self._draw.random() < 0.5:
            self._launch()
        unanswered = self._unsent.accepted
        self._now += self._draw.randint(0, 5)
        self._bill.lose_engine()
        self._start_engine()
        for client in self._clients.waiting:
            is_ready = self._draw.random() < 0.9
            refusal = self._scheduler.resume(
                client.new, client.resumed, self._now, is_ready=is_ready
            )
            assert refusal is None
            self.num_done["resumed"] += 1
            if not is_ready:
                self._unready.append(client.new.id)
        for new in unanswered:
            self._submit(new)

    def _check(self) -> None:
        self._cache.check()
        assert sum(self._cache.usage) == self._cache.num_usable_blocks

    def _end_all(self) -> None:
        """Bring every request to its end; all blocks are home then."""
        for _ in range(MAX_STEPS_TO_END):
            while self._unready:
                self._make_ready()
            if not self._scheduler.has_work and self._in_flight is None:
                break
            self._step()
        self._send()
        assert not self._scheduler.has_work, "every accepted request ends"
        assert not self._clients.waiting
        assert self._cache.usage.active == 0 and self._cache.host_usage.swapped == 0
        self._clients.check_counters()
        self._bill.check(self._clients)
        for tenant, used in self._bill.told.items():
            self.num_done[f"blocks of {tenant or 'nobody'}"] += used.block_ns > 0
            self.num_done["lost tokens"] += used.num_lost_tokens
            self.num_done["wasted tokens"] += used.num_wasted_tokens
        for stats in self._clients.stats:
            self.num_done["preempted"] += stats.num_preemptions
            self.num_done["preempted for urgent ones"] += stats.num_urgent_preemptions
            self.num_done["swapped out"] += stats.num_swaps
            self.num_done["tokens found"] += stats.num_prefix_hits
            self.num_done["tokens forked"] += stats.num_forked_tokens
            self.num_done["tokens generated"] += stats.num_generation_tokens
            self.num_done["first tokens in time"] += stats.num_ttft_met
            self.num_done["first tokens late"] += stats.num_ttft_missed
            self.num_done["tokens in time"] += stats.num_itl_met
            self.num_done["tokens late"] += stats.num_itl_missed
