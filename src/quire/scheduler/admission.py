"""Decides which waiting request is admitted, and its first blocks: a cached prefix, blocks on the
host, or those of a forked request."""

from typing import NamedTuple

from quire.cache.admission import BlocksMissing
from quire.cache.kv_cache import KVCache
from quire.cache.prefix_miss import PrefixMiss
from quire.scheduler.accounts import Counters
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import CostModel
from quire.scheduler.prefix_waits import PrefixWaits
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request
from quire.scheduler.running import RunningSet
from quire.scheduler.sessions.sessions import Sessions
from quire.scheduler.step_draft import StepDraft

CALM_STEPS = 32
"""The number of steps after a preemption in which admissions leave more free blocks."""


class Blocker(NamedTuple):
    """The reason why a request must wait, the number that explains it, and the id of the request it
    waits for, if it waits for one.
    """

    reason: Reason
    number: int
    other: str = ""


class Admission:
    """Asks the cache for a request's blocks. It changes the table, the accounts and the timeline;
    the scheduler moves the request between waiting and running.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        running: RunningSet,
        cost: CostModel,
        counters: Counters,
        sessions: Sessions,
    ) -> None:
        self.prefix_waits = PrefixWaits(cache, is_enabled=config.wait_for_prefix)
        self._config = config
        self._cache = cache
        self._running = running
        self._cost = cost
        self._counters = counters
        self._sessions = sessions
        self._block_size = cache.prefix_recompute_cost(1).num_tokens
        self._keep_free = int(config.watermark * cache.num_usable_blocks)
        self._calm_at = 0

    def swap_out(self, victim: Request) -> int | None:
        """Give a victim's blocks to the host if that costs less than to compute them again. Return
        how many tokens the host keeps, or None if it keeps nothing.

        What awaits its result is computed again, so that the result can be dropped; and so is all
        of a prompt whose rows are needed together, or still to be scored. Recurrent layers compute
        again what they have no state before.
        """
        if victim.needs_rows:
            return None
        num_computed = min(victim.num_computed, len(victim.token_ids) - 1)
        num_kept = self._cache.swap_point(victim.table, num_computed)
        recompute_cost = self._cache.recompute_cost(victim.table, num_kept)
        if self._cost.prefers_swap(recompute_cost) and self._cache.swap_out(victim.table, num_kept):
            return num_kept
        return None

    def note_preemption(self, number: int) -> None:
        """Note a preemption in the step after the one of this `number`."""
        self._calm_at = number + CALM_STEPS

    def update_offloading(self) -> None:
        """Set whether the cache offloads evicted blocks to the host, and which snapshots of states,
        from the measured speeds and the recent hit rate."""
        hit_rate = self._counters.recent.rate
        self._cache.offloads = self._cost.prefers_offload(
            self._cache.prefix_recompute_cost(1), hit_rate
        )
        if self._cache.states is not None:
            self._cache.states.least_tokens = self._cost.least_offload(hit_rate)

    def blocker(self, request: Request, draft: StepDraft) -> Blocker | None:
        """Return the limit of the step that blocks a request, or None. A sequence stays reserved
        for each request that was set aside, and a request may pass them only if its prompt fits
        into this step."""
        if draft.num_preempted:
            return Blocker(Reason.WAITS_AFTER_PREEMPTION, draft.num_preempted)
        if len(self._running) + draft.num_aside >= self._config.max_num_seqs:
            return Blocker(Reason.WAITS_FOR_SEQUENCE, len(self._running))
        is_whole = draft.num_aside or not self._config.cuts_prompts
        if not draft.tokens_left or (is_whole and len(request.token_ids) > draft.tokens_left):
            return Blocker(Reason.WAITS_FOR_BUDGET, self._config.max_num_batched_tokens)
        share = draft.share
        if share is None or draft.room():
            return None
        if share.num_tokens is None:
            return Blocker(Reason.WAITS_FOR_BUDGET, self._config.max_num_batched_tokens)
        return Blocker(Reason.WAITS_FOR_PACE, share.num_tokens, share.tightest)

    def holds_back(self, request: Request) -> bool:
        """Return whether no request may pass this one, because it was skipped too often or
        preempted."""
        return request.num_preemptions > 0 or request.num_skips >= self._config.max_skips

    def begins(self, request: Request, number: int) -> bool:
        """Return whether a request waits for nothing but room: not for a grammar, a slower store,
        or what others compute. `number` is that of the step before the next."""
        if request.loading_from is not None or not request.is_ready:
            return False
        forked = self._source_of(request)
        if forked is not None:
            return forked.prompt_step is not None and forked.prompt_step <= number
        if request.new.needs_all_rows or request.num_preemptions:
            return True
        return self.prefix_waits.awaited(request, use_host=self._uses_host(request)) is None

    def admit(
        self,
        request: Request,
        draft: StepDraft,
        now: float,
        number: int,
        *,
        goes_first: bool = False,
    ) -> int | Blocker:
        """Take blocks for everything known of the request, and return how many of its tokens are
        computed already, or the reason it must wait. `number` is that of the step before the draft.
        One that `goes_first`, before the running are scheduled, leaves a block for each of them.
        """
        source = request.loading_from
        if source is not None or not request.is_ready:
            draft.num_unready += 1
            return Blocker(Reason.WAITS_FOR_GRAMMAR if source is None else source.waits_for, 0)
        num_spare = draft.num_reserved + self._num_spare(number, is_tight=goes_first)
        forked = self._source_of(request)
        if forked is None:
            return self._wait_for_prefix(request, draft) or self._alone(request, num_spare, now)
        if forked.prompt_step is None or forked.prompt_step > number:
            return Blocker(Reason.WAITS_FOR_PROMPT, 0, forked.id)
        return self._forked(request, forked, num_spare, now)

    def _num_spare(self, number: int, *, is_tight: bool) -> int:
        """Return the number of blocks that an admission must leave free. After a preemption it is
        one more per running request, so that the resumed request is not preempted again."""
        if not self._running:
            return 0
        is_tight = is_tight or number < self._calm_at
        return self._keep_free + (len(self._running) if is_tight else 0)

    def _source_of(self, request: Request) -> Request | None:
        """Return the running request that this one forks, or None. A request with outputs to
        recompute begins alone, with prefix hits."""
        new = request.new
        if new.fork_of is None or new.needs_all_rows or request.num_preemptions:
            return None
        if request.num_outputs:
            return None
        return self._running.get(new.fork_of) if request.num_prompt_tokens > 1 else None

    def _forked(
        self, request: Request, source: Request, num_spare: int, now: float
    ) -> int | Blocker:
        """Take over all but the last token of the prompt. That one is computed by the request
        itself, which samples its own next token from it.
        """
        num_shared = request.num_prompt_tokens - 1
        forked = self._cache.fork(source.table, request.table, num_shared, keep_free=num_spare)
        if isinstance(forked, BlocksMissing):
            return Blocker(Reason.WAITS_FOR_BLOCKS, forked.num_blocks)
        if not forked:
            return self._alone(request, num_spare, now)
        self._counters.note_fork(request, source, num_shared, now)
        return num_shared

    def _wait_for_prefix(self, request: Request, draft: StepDraft) -> Blocker | None:
        """Return why the request should wait for a prefix, or None. It should if another request
        computes more of its prompt than its prefix hit, and if waiting for that gives an earlier
        first token: after the steps in flight, and this one if it could finish its prompt in this
        step. Preempted requests do not wait."""
        if request.new.needs_all_rows or request.num_preemptions:
            return None
        awaited = self.prefix_waits.awaited(request, use_host=self._uses_host(request))
        if awaited is None:
            return None
        num_left = len(request.token_ids) - awaited.num_found
        num_steps = draft.num_under_way + (num_left <= draft.room())
        num_saved = awaited.num_tokens - len(self._running) * num_steps
        if not self._cost.prefers_wait(num_saved, num_steps):
            return None
        if self.prefix_waits.wait(request):
            self._counters.num_prefix_waits += 1
        draft.set_aside(awaited.num_blocks)
        return Blocker(Reason.WAITS_FOR_PREFIX, awaited.num_tokens, awaited.other)

    def _uses_host(self, request: Request) -> bool:
        """Return whether the request copies its blocks in from the host instead of recomputing
        them; a short prompt may be computed sooner than the state after it is copied."""
        num_blocks = max(len(request.token_ids) // self._block_size, 1)
        return self._cost.prefers_host(
            self._cache.prefix_recompute_cost(num_blocks), is_resumed=request.num_preemptions > 0
        )

    def _alone(self, request: Request, num_spare: int, now: float) -> int | Blocker:
        """Admit a request that does not fork another one."""
        was_swapped = request.table.swap is not None
        num_reserved = self._sessions.num_reserved(request, now)
        admitted = self._cache.admit(
            request.table,
            request.token_ids,
            keep_free=num_spare + num_reserved,
            use_cache=not request.new.needs_all_rows,
            use_host=self._uses_host(request),
        )
        if isinstance(admitted, BlocksMissing):
            if admitted.num_states:
                return Blocker(Reason.WAITS_FOR_STATE, admitted.num_states)
            if admitted.num_blocks <= num_reserved:
                return Blocker(Reason.WAITS_FOR_SESSIONS, admitted.num_blocks)
            return Blocker(Reason.WAITS_FOR_BLOCKS, admitted.num_blocks - num_reserved)
        if self._counters.note_admission(request, admitted, now, was_swapped=was_swapped):
            self._counters.note_prefix(request, self._explain_miss(request), now)
        return admitted

    def _explain_miss(self, request: Request) -> PrefixMiss | None:
        """Return why no more of its prompt was found, or None where the request declined to
        look.
        """
        if request.new.needs_all_rows:
            return None
        return self._cache.explain_miss(request.table, request.token_ids, request.num_cached)
