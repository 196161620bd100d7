"""The scheduler's counts, and the accounts of a request's end."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.kv_cache import KVCache
from quire.cache.prefix_miss import MissKind, PrefixMiss
from quire.cache.states.host_states import HostStateUsage
from quire.scheduler.pacing.target_counts import TargetCounts
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request
from quire.scheduler.sessions.session_counts import SessionCounts
from quire.scheduler.step import Finish, PrefillProgress, Stats, StepFailure, StepLaunch
from quire.scheduler.usage.ledger import UsageLedger

_CAPACITY = (
    Reason.WAITS_FOR_BLOCKS,
    Reason.WAITS_FOR_STATE,
    Reason.WAITS_FOR_SEQUENCE,
    Reason.WAITS_AFTER_PREEMPTION,
    Reason.WAITS_FOR_SKIPPED,
)


NUM_RECENT = 1000


class HitRate:
    """The share of prompts that was found in the prefix cache, over the last `max_requests`
    requests for which anything was looked up.
    """

    def __init__(self, max_requests: int = NUM_RECENT) -> None:
        self.num_queries = 0
        self.num_hits = 0
        self._max_requests = max_requests
        self._requests: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rate(self) -> float:
        """The share of looked-up tokens that were found; 0 without lookups."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0

    def observe(self, num_queries: int, num_hits: int) -> None:
        """Note the looked-up and the found tokens of one request."""
        if num_queries == 0:
            return
        self._requests.append((num_queries, num_hits))
        self.num_queries += num_queries
        self.num_hits += num_hits
        if len(self._requests) > self._max_requests:
            oldest_queries, oldest_hits = self._requests.popleft()
            self.num_queries -= oldest_queries
            self.num_hits -= oldest_hits

    def reset(self) -> None:
        """Forget all requests."""
        self._requests.clear()
        self.num_queries = self.num_hits = 0


@dataclass(slots=True)
class Counters:
    """Counts since the start, which never decrease except `recent`. Prefix queries, hits (in
    tokens) and misses are counted at a request's first admission. `usage` has the counts by tenant.
    """

    usage: UsageLedger = field(default_factory=UsageLedger)
    num_prefix_queries: int = 0
    num_host_hits: int = 0
    num_disk_hits: int = 0
    num_peer_hits: int = 0
    num_prefix_waits: int = 0
    num_tokens_without_state: int = 0
    num_swaps: int = 0
    num_urgent: int = 0
    num_urgent_swaps: int = 0
    num_let_by: int = 0
    num_block_copies: dict[CopyKind, int] = field(
        default_factory=lambda: dict.fromkeys(CopyKind, 0)
    )
    num_forced_tokens: int = 0
    num_resets: int = 0
    num_failed_steps: dict[StepFailure, int] = field(
        default_factory=lambda: dict.fromkeys(StepFailure, 0)
    )
    num_steps: dict[StepLaunch, int] = field(default_factory=lambda: dict.fromkeys(StepLaunch, 0))
    misses: dict[MissKind, int] = field(default_factory=lambda: dict.fromkeys(MissKind, 0))
    recent: HitRate = field(default_factory=HitRate)
    targets: TargetCounts = field(default_factory=TargetCounts)
    sessions: SessionCounts = field(default_factory=SessionCounts)

    def note_admission(
        self, request: Request, num_hit: int, now: float, *, was_swapped: bool
    ) -> bool:
        """Count an admission that found `num_hit` tokens computed. Return whether it was the
        request's first, whose prefix is to be counted.
        """
        if request.admitted_s is not None:
            self._note_recomputed(request, max(request.num_discarded - num_hit, 0))
            request.note(now, Reason.SWAPPED_IN if was_swapped else Reason.RESUMED, num_hit)
            return False
        request.admitted_s = now
        request.num_cached = num_hit
        request.note(now, Reason.ADMITTED, num_hit)
        return True

    def _note_recomputed(self, request: Request, num_tokens: int) -> None:
        """Count recomputed tokens: wasted by a preemption in this engine, or lost with an earlier
        engine."""
        for account in self.usage.accounts(request.new.tenant):
            if request.num_preemptions:
                account.num_wasted_tokens += num_tokens
            else:
                account.num_lost_tokens += num_tokens

    def note_preemption(self, victim: Request, *, was_swapped: bool, is_urgent: bool) -> None:
        """Count a preemption."""
        self.num_swaps += was_swapped
        self.num_urgent += is_urgent
        self.num_urgent_swaps += was_swapped and is_urgent
        for account in self.usage.accounts(victim.new.tenant):
            account.num_preemptions += 1

    def note_prefix(self, request: Request, miss: PrefixMiss | None, now: float) -> None:
        """Count the prefix hit of the first admission, and the reason of the miss after it."""
        self.num_prefix_queries += request.num_prompt_tokens
        for account in self.usage.accounts(request.new.tenant):
            account.num_prefix_hits += request.num_cached
        from_host = min(request.table.num_from_host, request.num_cached)
        self.num_host_hits += from_host
        loaded = min(request.num_loaded, request.num_cached - from_host)
        from_peers = min(request.num_from_peers, loaded)
        self.num_disk_hits += loaded - from_peers
        self.num_peer_hits += from_peers
        self.recent.observe(request.num_prompt_tokens, request.num_cached)
        if miss is not None:
            self.misses[miss.kind] += 1
            if miss.kind is MissKind.STATE:
                self.num_tokens_without_state += miss.number - request.num_cached
            request.note(now, Reason(f"miss_{miss.kind}"), miss.number)

    def note_fork(self, request: Request, source: Request, num_shared: int, now: float) -> None:
        """Count an admission that forked the first `num_shared` tokens of `source`. The tokens are
        not counted again if an earlier engine had admitted the request."""
        if request.admitted_s is None:
            request.admitted_s = now
            request.num_cached = num_shared
            for account in self.usage.accounts(request.new.tenant):
                account.num_forked_tokens += num_shared
        request.note(now, Reason.FORKED, num_shared, source.id)

    def note_block_copies(self, block_copies: Iterable[BlockCopy]) -> None:
        """Count the copies by their kinds."""
        for copy in block_copies:
            self.num_block_copies[copy.kind] += 1

    def note_outputs(self, request: Request, num_tokens: int, now: float) -> None:
        """Count the tokens of one step, the first of them sampled and the others forced, and the
        prompt with the first output token."""
        request.generated.num_tokens += num_tokens
        self.num_forced_tokens += num_tokens - 1
        self.targets.note(request, now)
        request.last_token_s = now
        if request.first_token_s is None:
            self.note_prompt(request, now)
            request.note(now, Reason.FIRST_TOKEN)

    def note_step(self, launch: StepLaunch | None, failure: StepFailure | None) -> None:
        """Count a step by its launch and its failure, if it has them."""
        if launch is not None:
            self.num_steps[launch] += 1
        if failure is not None:
            self.num_failed_steps[failure] += 1

    def note_reset(self) -> None:
        """Count a reset of the prefix cache, and forget the recent hit rate."""
        self.num_resets += 1
        self.recent.reset()

    def note_prompt(self, request: Request, now: float) -> None:
        """Count a prompt that is computed."""
        request.first_token_s = now
        for account in self.usage.accounts(request.new.tenant):
            account.num_prompt_tokens += request.num_prompt_tokens


def stats_of(counters: Counters, num_running: int, waiting: WaitingQueue, cache: KVCache) -> Stats:
    """Return the current statistics. The last event of the queue's head says whether the queue
    waits for capacity, because few requests may pass the head."""
    usage, host, states = cache.usage, cache.host_usage, cache.state_usage
    host_states = HostStateUsage() if cache.states is None else cache.states.host_usage
    head, used = waiting.head, counters.usage.total
    blocked = head is not None and bool(head.timeline) and head.timeline[-1].reason in _CAPACITY
    return Stats(
        num_running=num_running,
        num_waiting=len(waiting),
        num_waiting_for_capacity=len(waiting) if blocked else 0,
        num_blocks_free=usage.free,
        num_blocks_cached=usage.cached,
        num_blocks_active=usage.active,
        num_blocks_swapped=host.swapped,
        num_blocks_on_host=host.cached,
        num_prefix_queries=counters.num_prefix_queries,
        num_prefix_hits=used.num_prefix_hits,
        num_forked_tokens=used.num_forked_tokens,
        num_preemptions=used.num_preemptions,
        num_swaps=counters.num_swaps,
        num_copied_out=counters.num_block_copies[CopyKind.OUT],
        num_copied_in=counters.num_block_copies[CopyKind.IN],
        num_copied_on_device=counters.num_block_copies[CopyKind.FORK],
        num_wasted_tokens=used.num_wasted_tokens + used.num_lost_tokens,
        num_prompt_tokens=used.num_prompt_tokens,
        num_generation_tokens=used.num_generation_tokens,
        num_recent_queries=counters.recent.num_queries,
        num_recent_hits=counters.recent.num_hits,
        num_resets=counters.num_resets,
        num_prefix_waits=counters.num_prefix_waits,
        **_sources(counters),
        num_forced_tokens=counters.num_forced_tokens,
        num_blocks_pinned=usage.pinned,
        num_lost_tokens=used.num_lost_tokens,
        **_steps(counters),
        num_states_free=states.free,
        num_states_cached=states.cached,
        num_states_active=states.active,
        num_states_swapped=host_states.swapped,
        num_states_on_host=host_states.cached,
        num_state_copies_out=counters.num_block_copies[CopyKind.STATE_OUT],
        num_state_copies_in=counters.num_block_copies[CopyKind.STATE_IN],
        num_ttft_met=counters.targets.num_ttft_met,
        num_ttft_missed=counters.targets.num_ttft_missed,
        num_itl_met=counters.targets.num_itl_met,
        num_itl_missed=counters.targets.num_itl_missed,
        num_urgent_preemptions=counters.num_urgent,
        num_urgent_swaps=counters.num_urgent_swaps,
        num_ttft_foreseen=counters.targets.num_ttft_foreseen,
        num_let_by=counters.num_let_by,
        num_blocks_kept=cache.kept.num_evictable,
        **_sessions(counters.sessions),
    )


def _sessions(counts: SessionCounts) -> dict[str, int]:
    """Return the counts of sessions."""
    return {
        "num_turns": counts.num_turns,
        "num_turns_kept": counts.num_returned,
        "num_kept_expired": counts.num_expired,
        "num_kept_crowded_out": counts.num_crowded_out,
        "num_held_for_sessions": counts.num_held,
    }


def _steps(counters: Counters) -> dict[str, int]:
    """Return the numbers of steps by failure and by launch."""
    failed, launched = counters.num_failed_steps, counters.num_steps
    return {
        "num_steps_out_of_memory": failed[StepFailure.OUT_OF_MEMORY],
        "num_steps_with_errors": failed[StepFailure.ERROR],
        "num_steps_launched": launched[StepLaunch.NONE],
        "num_steps_piecewise": launched[StepLaunch.PIECEWISE],
        "num_steps_full": launched[StepLaunch.FULL],
    }


def _sources(counters: Counters) -> dict[str, int]:
    """Return the hits in slower memory, and the misses by reason."""
    misses = counters.misses
    return {
        "num_host_hits": counters.num_host_hits,
        "num_disk_hits": counters.num_disk_hits,
        "num_peer_hits": counters.num_peer_hits,
        "num_misses_too_short": misses[MissKind.TOO_SHORT],
        "num_misses_differing": misses[MissKind.DIFFERS],
        "num_misses_evicted": misses[MissKind.EVICTED],
        "num_misses_by_salt": misses[MissKind.SALT],
        "num_misses_new": misses[MissKind.NEW],
        "num_misses_without_state": misses[MissKind.STATE],
        "num_tokens_without_state": counters.num_tokens_without_state,
    }


def prefill_of(request: Request, num_computed: int) -> PrefillProgress | None:
    """Return how far the prompt of a request without output is computed, None where the request
    does not ask for that."""
    if not request.new.reports_prefill or request.num_outputs:
        return None
    return PrefillProgress(num_computed, request.num_cached)


def finish_of(request: Request, reason: Reason, now: float) -> Finish:
    """Return the account of a request that ends now: its times are consecutive and add up."""
    admitted_s = now if request.admitted_s is None else request.admitted_s
    first_token_s = now if request.first_token_s is None else request.first_token_s
    return Finish(
        reason=reason,
        number=request.token_ids[-1] if request.num_outputs else 0,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_outputs,
        num_cached_tokens=request.num_cached,
        num_preemptions=request.num_earlier_preemptions + request.num_preemptions,
        queue_s=admitted_s - request.arrived_s,
        prefill_s=first_token_s - admitted_s,
        decode_s=now - first_token_s,
        timeline=tuple(request.timeline),
        num_late_tokens=request.num_late_tokens,
    )
