"""The choice: which requests compute how many tokens in the next step.

A pure state machine: no clock, no randomness, no I/O; the time comes in as an argument. A request's
way:

    add -> waiting -> admitted -> running -> finished
              ^--- preempted ------'

Running requests are placed first, in the order of their admission, then waiting ones. Blocks run
short from the tail of the same order, so that nothing already placed in a step is taken back. The
first of the running can always go on, which is why every accepted request ends.
"""

from quire.cache.kv_cache import KVCache, Short
from quire.cache.kv_events import KVEvent
from quire.scheduler.accounts import Counters, finish_of, stats_of
from quire.scheduler.budget import StepDraft
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.step import BlockIds, Chunk, Delta, Finish, Refusal, Stats, Step, StepResult
from quire.scheduler.stopping import reason_to_stop


class Scheduler:
    """`schedule` and `update` alternate; an update may come one step late."""

    def __init__(self, config: SchedulerConfig, cache: KVCache) -> None:
        self._config = config
        self._cache = cache
        self._keep_free = int(config.watermark * cache.num_usable_blocks)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue()
        self._running: dict[str, Request] = {}
        self._drops: list[str] = []
        self._number = 0
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def stats(self) -> Stats:
        return stats_of(self._counters, len(self._running), self._waiting, self._cache.usage)

    def add(self, new: NewRequest, now: float) -> Refusal | None:
        """Take the request into the waiting line, or say why not, with the numbers."""
        refusal = self._refusal(new)
        if refusal is not None:
            return refusal
        request = Request(
            new, self._cache.open_table(new.reuse), list(new.prompt_token_ids), arrived_s=now
        )
        request.note(now, Reason.QUEUED, len(self._waiting))
        self._requests[new.id] = request
        self._waiting.append(request)
        return None

    def abort(self, request_id: str, now: float) -> Delta | None:
        """End the request and free its blocks at once; None if it is not here (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return Delta(request_id, (), finish=self._finish(request, Reason.ABORTED, now))

    def reset_prefix_cache(self) -> None:
        self._cache.reset()
        self._counters.num_resets += 1
        self._counters.recent.reset()

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        return self._cache.take_kv_events()

    def schedule(self, now: float) -> Step:
        """Choose the next step; it may be empty when all that is left awaits a late result."""
        draft = StepDraft(self._config.max_num_batched_tokens)
        self._place_running(draft, now)
        self._place_waiting(draft, now)
        self._number += 1
        drops, self._drops = tuple(self._drops), []
        return draft.finished(self._number, drops)

    def update(self, step: Step, result: StepResult, now: float) -> list[Delta]:
        """Take in what the step drew. Results for requests that left or were preempted meanwhile
        are dropped.
        """
        deltas = []
        drawn = iter(result.token_ids)
        for chunk in step.chunks:
            token_id = next(drawn) if chunk.samples else None
            request = self._running.get(chunk.request_id)
            if request is None or request.joined_step > step.number:
                continue
            delta = self._take_in(request, chunk, token_id, result, now)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def _place_running(self, draft: StepDraft, now: float) -> None:
        for request in list(self._running.values()):
            if not draft.tokens_left:
                return
            if request.id not in self._running:
                return  # preempted just now, and so is everything behind it
            num_tokens = min(self._num_uncomputed(request), draft.tokens_left)
            if num_tokens == 0:
                continue
            grown = self._grow(request, num_tokens, draft, now)
            if grown is None:
                return
            draft.place(request, num_tokens, grown)

    def _num_uncomputed(self, request: Request) -> int:
        """Tokens known, or drawn but still on their way; none beyond what the request may draw."""
        num_pending = request.num_pending
        if num_pending:
            stopping = request.new.stopping
            num_known = len(request.token_ids) + num_pending
            if (
                request.num_outputs + num_pending >= stopping.max_tokens
                or num_known >= self._config.max_model_len
            ):
                return 0
            return num_known - request.num_computed
        return len(request.token_ids) - request.num_computed

    def _grow(
        self, request: Request, num_tokens: int, draft: StepDraft, now: float
    ) -> BlockIds | None:
        """Blocks for the next `num_tokens`, taken from the tail of the running if need be; None if
        that tail is this one.
        """
        start, end = request.num_computed, request.num_computed + num_tokens
        while (grown := self._cache.grow(request.table, start, end)) is None:
            _, victim = self._running.popitem()
            self._preempt(victim, draft, now)
            if victim is request:
                return None
        return grown

    def _preempt(self, victim: Request, draft: StepDraft, now: float) -> None:
        """Recompute later: blocks go back, outputs stay, the place in line is the first."""
        victim.note(now, Reason.PREEMPTED_FOR_BLOCKS, victim.num_computed)
        self._counters.num_preemptions += 1
        draft.num_preempted += 1
        self._cache.release(victim.table)
        victim.num_thrown = victim.num_computed
        victim.num_computed = 0
        victim.num_pending = 0
        victim.num_preemptions += 1
        self._drops.append(victim.id)
        self._waiting.push_front(victim)

    def _place_waiting(self, draft: StepDraft, now: float) -> None:
        """Admit from the head while budget, places and blocks allow; the first that must wait is
        told why.
        """
        while (request := self._waiting.head) is not None:
            blocker = self._blocker(draft)
            if blocker is None:
                blocker = self._admit(request, draft, now)
            if blocker is not None:
                request.note(now, *blocker)
                return

    def _blocker(self, draft: StepDraft) -> tuple[Reason, int] | None:
        if draft.num_preempted:
            return Reason.WAITS_AFTER_PREEMPTION, draft.num_preempted
        if len(self._running) >= self._config.max_num_seqs:
            return Reason.WAITS_FOR_SEQUENCE, len(self._running)
        if not draft.tokens_left:
            return Reason.WAITS_FOR_BUDGET, self._config.max_num_batched_tokens
        return None

    def _admit(self, request: Request, draft: StepDraft, now: float) -> tuple[Reason, int] | None:
        """Blocks for everything known of the request, then its first chunk; or the reason it must
        wait.
        """
        admitted = self._cache.admit(
            request.table,
            request.token_ids,
            keep_free=self._keep_free if self._running else 0,
            reuse=request.new.prompt_logprobs is None,
        )
        if isinstance(admitted, Short):
            return Reason.WAITS_FOR_BLOCKS, admitted.num_blocks
        self._waiting.remove(request)
        self._running[request.id] = request
        request.joined_step = self._number + 1
        request.num_computed = admitted
        self._note_admission(request, admitted, now)
        draft.join(request)
        num_tokens = min(len(request.token_ids) - admitted, draft.tokens_left)
        draft.place(request, num_tokens, ())
        return None

    def _note_admission(self, request: Request, num_hit: int, now: float) -> None:
        if request.admitted_s is None:
            request.admitted_s = now
            request.num_cached = num_hit
            request.note(now, Reason.ADMITTED, num_hit)
            self._note_prefix(request, num_hit, now)
        else:
            self._counters.num_wasted_tokens += max(request.num_thrown - num_hit, 0)
            request.note(now, Reason.RESUMED, num_hit)

    def _note_prefix(self, request: Request, num_hit: int, now: float) -> None:
        """What was found, and why no more; no reason where the request declined to look."""
        miss = None
        if request.new.prompt_logprobs is None:
            miss = self._cache.explain_miss(request.table, request.token_ids, num_hit)
        if miss is not None:
            request.note(now, Reason(f"miss_{miss.kind}"), miss.number)
        self._counters.count_prefix(request.num_prompt_tokens, num_hit, miss)

    def _take_in(
        self, request: Request, chunk: Chunk, token_id: int | None, result: StepResult, now: float
    ) -> Delta | None:
        """One chunk's result into its request: its blocks advance, what was drawn is appended,
        and the end is judged.
        """
        scores = result.prompt_logprobs.get(request.id)
        scored = request.take_scores(chunk.start, scores) if scores else ()
        if request.id in result.not_finite:
            return Delta(request.id, (), (), scored, self._finish(request, Reason.NOT_FINITE, now))
        self._cache.advance(request.table, request.token_ids, chunk.start + chunk.num_tokens)
        if token_id is None:
            return Delta(request.id, (), (), scored) if scored else None
        self._append(request, token_id, now)
        logprob = result.logprobs.get(request.id)
        logprobs = () if logprob is None else (logprob,)
        reason = reason_to_stop(request, self._config.max_model_len)
        finish = None if reason is None else self._finish(request, reason, now)
        return Delta(request.id, (token_id,), logprobs, scored, finish)

    def _append(self, request: Request, token_id: int, now: float) -> None:
        request.num_pending -= 1
        request.token_ids.append(token_id)
        self._counters.num_generation_tokens += 1
        if request.first_token_s is None:
            request.first_token_s = now
            self._counters.num_prompt_tokens += request.num_prompt_tokens
            request.note(now, Reason.FIRST_TOKEN)

    def _finish(self, request: Request, reason: Reason, now: float) -> Finish:
        request.note(now, reason, request.token_ids[-1])
        self._leave(request)
        return finish_of(request, reason, now)

    def _leave(self, request: Request) -> None:
        del self._requests[request.id]
        if self._running.pop(request.id, None) is None:
            self._waiting.remove(request)
            return
        self._cache.release(request.table)
        self._drops.append(request.id)

    @property
    def _num_free_places(self) -> int:
        """Places that the waiting can take at once: none where the first was already held back."""
        head = self._waiting.head
        if head is not None and head.timeline[-1].reason.lasts:
            return 0
        return self._config.max_num_seqs - len(self._running)

    def _refusal(self, new: NewRequest) -> Refusal | None:
        """The reason this request can never be served, or cannot be taken now."""
        config, cache = self._config, self._cache
        num_prompt, max_tokens = len(new.prompt_token_ids), new.stopping.max_tokens
        num_blocks = cache.max_blocks(num_prompt + max_tokens)
        num_places = self._num_free_places
        if new.id in self._requests:
            return Refusal(new.id, Reason.DUPLICATE_ID, f"a request {new.id!r} is still running")
        if num_prompt == 0:
            return Refusal(new.id, Reason.PROMPT_EMPTY, "the prompt has no tokens", "prompt")
        if num_prompt + max_tokens > config.max_model_len:
            message = (
                f"{num_prompt} prompt tokens and {max_tokens} output tokens are "
                f"{num_prompt + max_tokens}, more than the context of {config.max_model_len}"
            )
            return Refusal(new.id, Reason.CONTEXT_EXCEEDED, message, "max_tokens")
        if num_blocks > cache.num_usable_blocks:
            message = (
                f"{num_prompt} prompt tokens and {max_tokens} output tokens need {num_blocks} KV "
                f"blocks, more than the {cache.num_usable_blocks} there are"
            )
            return Refusal(new.id, Reason.NEVER_FITS, message, "max_tokens")
        if len(self._waiting) >= config.max_num_queued_reqs + num_places:
            message = (
                f"{len(self._waiting)} requests are waiting, {num_places} of which can start "
                f"at once; at most {config.max_num_queued_reqs} more may wait"
            )
            return Refusal(new.id, Reason.QUEUE_FULL, message)
        return None
