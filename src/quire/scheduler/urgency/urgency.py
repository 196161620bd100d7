"""Decides which waiting request may take the places of running ones, and of which.

    priority    those of a worse number: urgent 0 waits, 2, 1 and 0 run: the one of 2 goes
    fair        those of a tenant that was served more by over twice the largest price of a request
                of either, and that runs more for its weight

One that has room goes before prompts of theirs that are begun, since these would take the tokens of
the step.

The gap of the service of two tenants who both wait is at most that under virtual token counters
without preemption (Sheng et al., Fairness in Serving Large Language Models, arXiv 2401.00588,
theorem 4.4), so that a larger one comes of requests that keep their places.
"""

from typing import NamedTuple

from quire.cache.kv_cache import KVCache
from quire.scheduler.admission import Admission, Blocker
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.policy import PolicyName
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import PREEMPTIONS, Reason
from quire.scheduler.request import Request
from quire.scheduler.running import RunningSet
from quire.scheduler.shares import Shares, largest_price
from quire.scheduler.step_draft import StepDraft

MAX_TIMES = 3
"""A request gives its place to more urgent ones so often. Each time all that it has computed may be
lost, so that it costs at most four times its work; after that it keeps its place."""
NUM_LOOKED_AT = 5
"""The maximum number of waiting requests that are looked at for one that waits for room."""
_LACKS_ROOM = (Reason.WAITS_FOR_BLOCKS, Reason.WAITS_FOR_STATE)


class Claim(NamedTuple):
    """A waiting request that goes before the running ones, and those of these that may give it
    their places, in the order in which they go; nobody where it lacks no room. It `needs_sequence`
    if as many run as may."""

    claimant: Request
    candidates: list[Request]
    needs_sequence: bool


class Urgency:
    """Finds claims, and the fewest victims for one. It changes nothing."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        waiting: WaitingQueue,
        running: RunningSet,
        shares: Shares,
        admission: Admission,
    ) -> None:
        self._config = config
        self._is_fair = config.scheduling_policy is PolicyName.FAIR
        self._is_on = config.scheduling_policy is not PolicyName.FCFS and config.cuts_prompts
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._shares = shares
        self._admission = admission

    def claim(self, draft: StepDraft, number: int) -> Claim | None:
        """Return the claim of the first waiting request that waits for nothing but room, if any may
        give it theirs. The draft of the step after the one of this `number` has scheduled none yet
        but those with earlier claims: the others keep a token each.
        """
        if not (self._is_on and len(self._waiting) and len(self._running)):
            return None
        waiting = self._waiting.first(NUM_LOOKED_AT)
        claimant = next((each for each in waiting if _is_ready(each)), None)
        if claimant is None or claimant.timeline[-1].reason in PREEMPTIONS:
            return None
        is_full = len(self._running) >= self._config.max_num_seqs
        lacks_room = is_full or claimant.timeline[-1].reason in _LACKS_ROOM
        others = [each for each in self._running if each.admitted_step <= number]
        if draft.tokens_left <= len(others) - is_full or draft.room() <= 0:
            return None
        if not lacks_room:
            is_first = self._passes(claimant, others) and self._admission.begins(claimant, number)
            return Claim(claimant, [], needs_sequence=False) if is_first else None
        free = [each for each in others if _may_go(each, claimant)]
        candidates = self._over_served(claimant, free) if self._is_fair else _worse(claimant, free)
        if not candidates or not self._admission.begins(claimant, number):
            return None
        return Claim(claimant, candidates, is_full)

    def _passes(self, claimant: Request, running: list[Request]) -> bool:
        """Return whether a prompt that has room goes before those that are begun, which would take
        the step's tokens: where all of them are of worse requests, or have more left to compute and
        are of other tenants that were served no less. Nobody loses a place by that, so that there
        need be no gap.
        """
        begun = [each for each in running if each.is_in_prompt]
        if not self._is_fair:
            rank, key = claimant.new.priority, claimant.priority_key
            return bool(begun) and all(
                each.new.priority > rank and each.running_order > key for each in begun
            )
        own, num_tokens = self._shares.served(claimant.tenant), len(claimant.token_ids)
        return bool(begun) and all(
            each.tenant != claimant.tenant
            and self._shares.served(each.tenant) >= own
            and each.num_left > num_tokens
            for each in begun
        )

    def fewest(self, claim: Claim, blocker: Blocker | None) -> list[Request]:
        """Return the victims of a claim, one at least and none too many; nobody if all candidates
        together would free too few of the blocks that the blocker lacks. Blocks that others hold
        too, or that the claimant will find, are not freed."""
        lacks_blocks = blocker is not None and blocker.reason is Reason.WAITS_FOR_BLOCKS
        num_missing = blocker.number if blocker is not None and lacks_blocks else 0
        held = (len(ids) for each in claim.candidates for ids in each.table.block_ids)
        if num_missing and sum(held) < num_missing:
            return []
        chosen: list[tuple[int, Request]] = []
        num_over = -num_missing
        for each in claim.candidates:
            num_own = self._num_own(each, claim.claimant)
            chosen.append((num_own, each))
            num_over += num_own
            if num_over >= 0:
                break
        else:
            return []
        victims = []
        for num_own, each in reversed(chosen):
            if each is not chosen[-1][1] and num_own <= num_over:
                num_over -= num_own
            else:
                victims.append(each)
        return victims

    def _num_own(self, victim: Request, claimant: Request) -> int:
        """Return how many blocks the victim alone holds behind what it has in common with the
        claimant."""
        table = victim.table
        size = self._cache.prefix_recompute_cost(1).num_tokens
        mine = table.chain.digests[: table.num_cached_blocks]
        theirs = self._cache.block_keys(claimant.table, claimant.token_ids)
        pairs = enumerate(zip(mine, theirs, strict=False))
        most = min(len(mine), len(theirs))
        num_common = next((index for index, (one, other) in pairs if one != other), most)
        held = self._cache.recompute_cost(table, table.num_covered * size)
        common = self._cache.recompute_cost(table, num_common * size)
        return held.num_blocks - common.num_blocks

    def _over_served(self, claimant: Request, running: list[Request]) -> list[Request]:
        """Return those whose tenant was served so much more that the claimant's has a claim."""
        own, served = claimant.tenant, self._shares.served
        largest: dict[str, float] = {own: largest_price(claimant.new)}
        weights: dict[str, float] = {own: claimant.new.weight}
        for each in self._running:
            price = largest_price(each.new)
            largest[each.tenant] = max(price, largest.get(each.tenant, price))
            weights.setdefault(each.tenant, each.new.weight)

        def per_weight(tenant: str) -> float:
            return self._running.num_in(tenant) / weights[tenant]

        over = {
            tenant
            for tenant, price in largest.items()
            if served(tenant) - served(own) > 2 * max(price, largest[own])
            and per_weight(tenant) > per_weight(own)
        }
        found = [each for each in running if each.tenant in over]
        return sorted(found, key=lambda r: (served(r.tenant), r.running_order), reverse=True)


def _is_ready(request: Request) -> bool:
    return request.is_ready and request.loading_from is None


def _may_go(running: Request, claimant: Request) -> bool:
    """Return whether a running request may give its place: not too often, nor to one that takes
    over its blocks and would lack them."""
    return running.num_urgent < MAX_TIMES and running.id != claimant.new.fork_of


def _worse(claimant: Request, running: list[Request]) -> list[Request]:
    """Return those of a worse priority, the worst first; how long they have waited is no matter."""
    found = [each for each in running if each.new.priority > claimant.new.priority]
    return sorted(found, key=lambda each: (each.new.priority, each.running_order), reverse=True)
