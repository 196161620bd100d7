"""Keeps what sessions are about to find, and lets their turns go before new sessions.

    a turn calls tools            its blocks are kept for as long as it pays (`turn_gaps.py`)
    the next turn comes           it counts as having come up to LEAD_S earlier; its blocks are kept
                                  until it is admitted
    it comes too late             its blocks are evicted like all others
    a turn ends without a call    the session is mostly over: what it alone has is evicted first
    a session is new, or has      it waits up to LEAD_S rather than take blocks that are kept, and
    lost its blocks               lets by who need not

So when memory is short some sessions go on with all of their blocks, and the others after them, in
place of all taking turns with none. Kept blocks are no reserve: running requests, turns of other
sessions, and who waits too long take them all the same.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, TypeAlias

from quire.cache.block_table import BlockTable
from quire.cache.evictable_list import EvictionRank
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import CostModel
from quire.scheduler.policy import PolicyName
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request
from quire.scheduler.running import RunningSet
from quire.scheduler.sessions.kept_shares import KeptName, KeptShares
from quire.scheduler.sessions.session import BlockMark, KnownSession, SessionTable
from quire.scheduler.sessions.session_counts import SessionCounts
from quire.scheduler.sessions.turn_gaps import MAX_OWN, TurnGaps

LEAD_S = 30.0
"""The next turn of a session counts as having come so much earlier, at most, but not before the
session began; a new session waits so long for kept blocks, and then the next."""
MAX_SESSIONS = 4096
"""So many sessions between two turns are known."""
MAX_KINDS = 1024
"""So many kinds of turns have gaps of their own."""
SOON_S, SOON_ODDS = 60.0, 0.5
"""A session is over if turns like its last are followed by another within this time less often."""
OVER = (inf,) * 4
"""The gaps that are assumed behind a turn without calls in a session that has called tools."""
Kind: TypeAlias = tuple[str, str, bool]
"""Turns of a tenant, by an endpoint, that called tools or not."""


class EndedTurn(NamedTuple):
    """A turn of which is not known yet whether it calls tools, and its first `num_blocks` cached
    blocks."""

    session: KnownSession
    digests: list[bytes]
    num_blocks: int
    priority: int


class Sessions:
    """Knows the sessions of the requests that come and go. Without `keep_sessions` in the
    configuration there are none."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        waiting: WaitingQueue,
        running: RunningSet,
        cost: CostModel,
        counts: SessionCounts,
    ) -> None:
        self._is_on = config.keep_sessions
        self._is_fair = config.scheduling_policy is PolicyName.FAIR
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._cost = cost
        self._block_size = cache.prefix_recompute_cost(1).num_tokens
        self._table = SessionTable(MAX_SESSIONS)
        self._gaps: dict[Kind, TurnGaps] = {}
        self._shares = KeptShares(cache.num_usable_blocks)
        self._unsaid: dict[str, EndedTurn] = {}
        self._num_unsaid = 0
        self._until_of: dict[str, float] = {}
        self._until: list[tuple[float, str]] = []
        self._num_sessions = 0
        self._num_held = 0
        self._held_since_s: float | None = None
        self._counts = counts

    def find(self, new: NewRequest, table: BlockTable, now: float) -> KnownSession | None:
        """Return the session that a request is the next turn of, or the first; None for requests
        that are no turns, as their prompt has no full block, or samples nothing."""
        if not self._is_on or new.fork_of is not None or new.stopping.max_tokens == 0:
            return None
        digests = self._cache.block_keys(table, new.prompt_token_ids)
        if not digests:
            return None
        num_prompt = len(new.prompt_token_ids)
        found = self._table.find(new.tenant, new.session, digests, num_prompt)
        if found is not None:
            return found
        return KnownSession(-1, new.tenant, new.session, now, num_prompt // self._block_size)

    def lead_s(self, session: KnownSession | None, now: float) -> float:
        """Return how many seconds earlier than now a turn counts as having come."""
        return 0.0 if session is None else min(now - session.started_s, LEAD_S)

    def enter(self, request: Request, now: float) -> None:
        """Note that a request waits: what the turn will find is kept until it is admitted."""
        session = request.session
        if session is None:
            return
        session.weight = request.new.weight
        self._shares.open(request.new.tenant, session.weight)
        if session.ended_s is None:
            session.number, self._num_sessions = self._num_sessions, self._num_sessions + 1
            return
        self._table.remove(session)
        request.note(now, Reason.NEXT_TURN, int(1000 * (now - session.ended_s)), session.turn_id)
        self._end_gap(session, now)
        session.ended_s = None
        self._counts.num_turns += 1
        name = _expected(session)
        if name in self._until_of:
            self._counts.num_returned += 1
            self._until_of[name] = inf
            return
        digests = request.table.chain.digests
        num_known = session.num_known(digests)
        if num_known:
            self._keep_expected(session, digests[:num_known], request.new.priority, inf)

    def admit(self, request: Request) -> None:
        """Note that a request has got its blocks."""
        session = request.session
        if request.is_held:
            self._num_held -= 1
            self._held_since_s = None
        if session is not None:
            self._let_go(_expected(session))

    def leave(self, request: Request, now: float) -> None:
        """Note the end of a request, which still has its blocks."""
        session, table = request.session, request.table
        self._num_held -= request.is_held
        if not self._num_held:
            self._held_since_s = None
        if session is None:
            return
        self._shares.close(request.new.tenant)
        self._let_go(_expected(session))
        num_blocks = min(table.num_cached_blocks, len(table.chain.digests))
        if num_blocks:
            self._mark(session, request, num_blocks)
            turn = EndedTurn(session, table.chain.digests, num_blocks, request.new.priority)
            self._remember(turn)
            self._keep_asked(turn, request, now)
        if not session.num_turns:
            return
        session.ended_s = now
        forgotten = self._table.add(session)
        if forgotten is not None:
            self._let_go(_expected(forgotten))
            self._let_go(_asked(forgotten))

    def note_turn(self, request_id: str, now: float, *, calls_tools: bool) -> None:
        """Note whether the answer of a request that has ended calls tools: its blocks are kept for
        the next turn, or given up where there will hardly be one."""
        turn = self._unsaid.pop(request_id, None)
        if turn is None:
            return
        self._num_unsaid -= turn.num_blocks
        session, digests = turn.session, turn.digests[: turn.num_blocks]
        if session.ended_s is None or session.turn_id != request_id:
            return
        gaps = self._gaps_of((session.tenant, session.endpoint, calls_tools))
        session.gap, session.gap_calls_tools = gaps.begin(session.ended_s), calls_tools
        if calls_tools:
            session.calls_tools = True
            saved_s = len(digests) * self._block_size * (self._cost.token_s or 0.0)
            num_kept = self._cache.prefix_recompute_cost(len(digests)).num_blocks
            share = num_kept / self._cache.num_usable_blocks
            hold_s = gaps.best_hold_s(session.own_gaps, saved_s, share, now)
            if hold_s:
                self._keep_expected(session, digests, turn.priority, session.ended_s + hold_s)
        elif session.calls_tools and gaps.odds_within(SOON_S, now) < SOON_ODDS:
            self._cache.kept.give_up(digests, session.num_first)

    def advance(self, now: float) -> None:
        """Let go of what was kept until now."""
        while self._until and self._until[0][0] <= now:
            until_s, name = heappop(self._until)
            if self._until_of.get(name) == until_s:
                self._counts.num_expired += self._shares.is_expected(name)
                self._let_go(name)

    def num_reserved(self, request: Request, now: float) -> int:
        """Return how many evictable blocks a request leaves to sessions that are expected. It is
        none for the turns of these, where nobody else runs, for one that was admitted before or has
        a better priority, and once one has waited for LEAD_S."""
        num_expected = self._cache.kept.num_expected
        if not num_expected or not len(self._running) or request.admitted_s is not None:
            return 0
        if self.lets_held_in(now) or self._goes_on(request):
            return 0
        worst = self._shares.worst_expected()
        if worst is None or request.new.priority < worst:
            return 0
        if self._is_fair:
            return min(num_expected, self._shares.num_expected(request.new.tenant))
        return num_expected

    def lets_held_in(self, now: float) -> bool:
        """Return whether a request has waited long enough for blocks that are kept."""
        return self._held_since_s is not None and now - self._held_since_s >= LEAD_S

    def holds(self, request: Request, reason: Reason, now: float) -> bool:
        """Let others by a request that begins to wait rather than take blocks that are kept; return
        whether it does for this reason."""
        if reason is not Reason.WAITS_FOR_SESSIONS or request.is_held:
            return False
        self._waiting.hold(request)
        self._num_held += 1
        if self._held_since_s is None:
            self._held_since_s = now
        self._counts.num_held += 1
        if request.session is not None:
            self._let_go(_expected(request.session))
        return True

    def clear(self) -> None:
        """Keep nothing any more, as the cache has forgotten all."""
        for name in tuple(self._until_of):
            self._let_go(name)

    def _goes_on(self, request: Request) -> bool:
        """Return whether a request is the turn of a session that has lost little of its blocks.

        What it computes again would take the place of what others find, so that each of them in
        turn computes as much again, as long as all go on. To wait costs the rest of its own blocks,
        once. A session goes on for about as many turns as it has had.
        """
        session = request.session
        if session is None or not session.num_turns:
            return False
        num_known = session.num_known(request.table.chain.digests) * self._block_size
        num_found = self._cache.num_cached(request.table, request.token_ids)
        num_lost = num_known - num_found
        return num_lost * session.num_turns <= num_found

    def _mark(self, session: KnownSession, request: Request, num_blocks: int) -> None:
        """Set by which blocks of an ended turn the next is known."""
        digests = request.table.chain.digests
        num_prompt = min(request.num_prompt_tokens // self._block_size, num_blocks)
        lasts = {num_blocks - 1, num_prompt - 1} - {-1}
        session.tails = tuple(BlockMark(index, digests[index]) for index in sorted(lasts))
        middle = max(num_prompt - 1, 0) // 2
        session.middle = BlockMark(middle, digests[middle])
        session.num_turns += 1
        session.num_prompt = request.num_prompt_tokens
        session.turn_id, session.endpoint = request.id, request.new.endpoint
        session.name = request.new.session

    def _remember(self, turn: EndedTurn) -> None:
        """Remember a turn until it is said whether it calls tools; the oldest are forgotten where
        all have more blocks than the cache."""
        again = self._unsaid.pop(turn.session.turn_id, None)
        self._num_unsaid -= 0 if again is None else again.num_blocks
        self._unsaid[turn.session.turn_id] = turn
        self._num_unsaid += turn.num_blocks
        while self._num_unsaid > self._cache.num_usable_blocks and len(self._unsaid) > 1:
            oldest = self._unsaid.pop(next(iter(self._unsaid)))
            self._num_unsaid -= oldest.num_blocks

    def _end_gap(self, session: KnownSession, now: float) -> None:
        if session.gap is None or session.ended_s is None:
            return
        kind = (session.tenant, session.endpoint, session.gap_calls_tools)
        self._gaps_of(kind).end(session.gap, now)
        session.gap = None
        if session.gap_calls_tools:
            session.own_gaps = [*session.own_gaps, now - session.ended_s][-MAX_OWN:]

    def _gaps_of(self, kind: Kind) -> TurnGaps:
        gaps = self._gaps.pop(kind, None)
        if gaps is None:
            gaps = TurnGaps() if kind[2] else TurnGaps(OVER)
            if len(self._gaps) >= MAX_KINDS:
                del self._gaps[next(iter(self._gaps))]
        self._gaps[kind] = gaps
        return gaps

    def _keep_expected(
        self, session: KnownSession, digests: Sequence[bytes], priority: int, until_s: float
    ) -> None:
        """Keep blocks for a turn that is expected, if its tenant may keep so many."""
        name = _expected(session)
        num_blocks = self._keep(session, name, digests, EvictionRank.EXPECTED, until_s)
        if num_blocks is not None:
            kept = KeptName(session.tenant, session.number, num_blocks, priority)
            self._shares.add(name, kept, session.weight)

    def _keep_asked(self, turn: EndedTurn, request: Request, now: float) -> None:
        """Keep the blocks of a prompt for as long as its client asks for."""
        seconds, session = request.new.retention_s, turn.session
        num_blocks = min(request.num_prompt_tokens // self._block_size, turn.num_blocks)
        if not seconds or not num_blocks:
            return
        name, digests = _asked(session), turn.digests[:num_blocks]
        num_kept = self._keep(session, name, digests, EvictionRank.ASKED, now + seconds)
        if num_kept is not None:
            kept = KeptName(session.tenant, session.number, num_kept)
            self._shares.add(name, kept, session.weight)

    def _keep(
        self,
        session: KnownSession,
        name: str,
        digests: Sequence[bytes],
        rank: EvictionRank,
        until_s: float,
    ) -> int | None:
        """Keep blocks under a name, and return how many they are, 0 where a snapshot of states is
        all that is needed; None, and keep nothing under it, where the tenant may not keep so many.
        """
        self._let_go(name)
        num_blocks = self._cache.prefix_recompute_cost(len(digests)).num_blocks
        others = self._shares.room_for(session.tenant, session.weight, num_blocks)
        if others is None:
            return None
        for other in others:
            self._let_go(other)
            self._counts.num_crowded_out += 1
        self._until_of[name] = until_s
        if until_s < inf:
            heappush(self._until, (until_s, name))
        return self._cache.kept.keep(name, digests, rank)

    def _let_go(self, name: str) -> None:
        if self._until_of.pop(name, None) is not None:
            self._cache.kept.let_go(name)
            self._shares.remove(name)


def _expected(session: KnownSession) -> str:
    """Return the name under which blocks are kept for the next turn of a session."""
    return f"expected {session.number}"


def _asked(session: KnownSession) -> str:
    """Return the name under which blocks are kept that a session's client asked to keep."""
    return f"asked {session.number}"
