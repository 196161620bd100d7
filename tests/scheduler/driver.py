"""A scheduler on its own with a clock, and notes of what it does: who is admitted after whom, who
ends how, what each tenant is served.
"""

from collections import Counter, defaultdict

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.spec import FULL
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Finish, Refusal, SeqChunk, Step, StepResult

BLOCK_SIZE = 2
CONFIG = SchedulerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=8,
    max_model_len=64,
    max_num_queued_reqs=10_000,
    watermark=0.0,
    max_skips=0,
)


def request(name: str, num_prompt: int = 4, max_tokens: int = 4) -> NewRequest:
    """Its prompt is like no other's."""
    first = int.from_bytes(name.encode(), "big")
    prompt = (first, *range(1, num_prompt))
    return NewRequest(name, prompt, Sampling(), Stopping(max_tokens))


def result_of(step: Step) -> StepResult:
    return StepResult(step.number, (7,) * sum(chunk.samples for chunk in step.chunks))


class Driver:
    """Steps a scheduler once a second, half of which the step itself takes.

    `admissions` are request ids in the order of admission, each with those that still waited at
    that moment; `served` are prices after weights.
    """

    def __init__(
        self,
        config: SchedulerConfig = CONFIG,
        num_blocks: int = 33,
        *,
        caches_prefixes: bool = False,
        num_host_blocks: int = 0,
        num_groups: int = 1,
    ) -> None:
        self.cache = KVCache(
            CacheConfig(
                num_blocks,
                BLOCK_SIZE,
                enable_prefix_caching=caches_prefixes,
                groups=(FULL,) * num_groups,
                num_host_blocks=num_host_blocks,
            )
        )
        self.scheduler = Scheduler(config, self.cache)
        self.now = 0.0
        self.news: dict[str, NewRequest] = {}
        self.arrived_s: dict[str, float] = {}
        self.waiting: dict[str, None] = {}
        self.admissions: list[tuple[str, frozenset[str]]] = []
        self.finishes: dict[str, Finish] = {}
        self.served: dict[str, float] = defaultdict(float)
        self.num_computed = 0
        self._paid: Counter[str] = Counter()

    def add(self, new: NewRequest) -> Refusal | None:
        refusal = self.scheduler.add(new, self.now)
        if refusal is None:
            self.news[new.id], self.arrived_s[new.id] = new, self.now
            self.waiting[new.id] = None
        return refusal

    def step(self) -> Step:
        self.now += 0.5
        step = self.scheduler.schedule(self.now)
        self.cache.check()
        for request_id in step.finished_requests:
            if request_id not in self.finishes:
                self.waiting[request_id] = None
        for each in step.new_requests:
            del self.waiting[each.request.id]
            self.admissions.append((each.request.id, frozenset(self.waiting)))
        self.num_computed += step.num_tokens
        for chunk in step.chunks:
            self._count(chunk)
        self.now += 0.5
        for delta in self.scheduler.update(step, result_of(step), self.now):
            if delta.finish is not None:
                self.finishes[delta.request_id] = delta.finish
                self.waiting.pop(delta.request_id, None)
        return step

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                assert self.cache.usage.active == 0
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} turns")

    def _count(self, chunk: SeqChunk) -> None:
        """Every prompt token once, every sampled token at the double price."""
        new, end = self.news[chunk.request_id], chunk.start + chunk.num_tokens
        paid = max(self._paid[new.id], chunk.start)
        num_prompt = max(min(end, len(new.prompt_token_ids)) - paid, 0)
        self._paid[new.id] = max(self._paid[new.id], end)
        price = num_prompt + 2 * chunk.samples
        self.served[new.tenant] += price / new.weight
