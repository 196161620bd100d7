"""A snapshot of the sessions, by the numbers of digests, tenants and names."""

from collections.abc import Iterator, Mapping
from heapq import heappush
from itertools import chain
from math import inf
from typing import NamedTuple, TypeAlias

from quire.cache.snapshot.digest_numbers import DigestNumbers, digest_of, numbers_of, runs_of
from quire.scheduler.request import Request
from quire.scheduler.sessions.kept_shares import KeptName
from quire.scheduler.sessions.session import BlockMark, KnownSession
from quire.scheduler.sessions.sessions import EndedTurn, Sessions
from quire.scheduler.sessions.turn_gaps import TurnGap, TurnGaps
from quire.scheduler.snapshot.arrival import TenantNumbers, tenant_of

MarkSnapshot: TypeAlias = tuple[int, int]
"""The index of a block and the number of its digest."""


class SessionSnapshot(NamedTuple):
    """The fields of `KnownSession`, the tenant and the name by their numbers, and the requests of a
    turn under way."""

    number: int
    tenant: int
    name: int
    started_s: float
    num_first: int
    num_turns: int
    num_prompt: int
    ended_s: float | None
    tails: list[MarkSnapshot]
    middle: MarkSnapshot | None
    turn_id: str
    endpoint: str
    weight: float
    calls_tools: bool
    gap: int | None
    gap_calls_tools: bool
    own_gaps: list[float]
    request_ids: list[str]


class TurnSnapshot(NamedTuple):
    """A turn that has ended, by its request, and the number of its session; its digests in runs."""

    request_id: str
    session: int
    digests: list[int]
    priority: int


class SessionsSnapshot(NamedTuple):
    """The fields of `Sessions`; those between two turns come first, in their order. `gaps` are by
    tenant, endpoint and whether the turns called tools."""

    sessions: list[SessionSnapshot]
    gaps: list[tuple[int, str, bool, int, list[tuple[int, float, float]]]]
    kept: list[tuple[str, int, int, int, int | None]]
    weights: list[tuple[int, float]]
    unsaid: list[TurnSnapshot]
    until: list[tuple[str, float]]
    num_sessions: int
    held_since_s: float | None


def digests_of_sessions(sessions: Sessions, requests: Mapping[str, Request]) -> Iterator[bytes]:
    """Yield the digests that sessions remember."""
    for session in _all(sessions, requests):
        for mark in (*session.tails, session.middle):
            if mark is not None:
                yield mark.digest
    yield from chain.from_iterable(
        each.digests[: each.num_blocks] for each in sessions._unsaid.values()
    )


def snapshot_sessions(
    sessions: Sessions,
    requests: Mapping[str, Request],
    numbers: DigestNumbers,
    tenants: TenantNumbers,
) -> SessionsSnapshot:
    """Return a snapshot; the digests must have `numbers`."""
    shares = sessions._shares
    return SessionsSnapshot(
        [
            _snapshot_session(session, ids, numbers, tenants)
            for session, ids in _all(sessions, requests).items()
        ],
        [
            (
                tenants.number(tenant),
                endpoint,
                calls_tools,
                gaps._next,
                [(number, *gap) for number, gap in gaps._gaps.items()],
            )
            for (tenant, endpoint, calls_tools), gaps in sessions._gaps.items()
        ],
        [
            (
                name,
                tenants.number(kept.tenant),
                kept.session,
                kept.num_blocks,
                kept.priority,
            )
            for name, kept in shares._names.items()
        ],
        [(tenants.number(tenant), weight) for tenant, weight in shares._weights.items()],
        [
            TurnSnapshot(
                request_id,
                each.session.number,
                runs_of(numbers.numbers(each.digests[: each.num_blocks])),
                each.priority,
            )
            for request_id, each in sessions._unsaid.items()
        ],
        list(sessions._until_of.items()),
        sessions._num_sessions,
        sessions._held_since_s,
    )


def restore_sessions(
    sessions: Sessions, snapshot: SessionsSnapshot, requests: Mapping[str, Request]
) -> None:
    """Restore new sessions from the snapshot, for live requests by id."""
    shares, found = sessions._shares, {}
    for tenant, weight in snapshot.weights:
        shares._weights[tenant_of(tenant)] = weight
    for each in snapshot.sessions:
        session = found[each.number] = _restored_session(each)
        if session.ended_s is not None:
            sessions._table.add(session)
        for request_id in each.request_ids:
            requests[request_id].session = session
            shares._live[session.tenant] = shares._live.get(session.tenant, 0) + 1
    for number, endpoint, calls_tools, following, known in snapshot.gaps:
        gaps = sessions._gaps[tenant_of(number), endpoint, calls_tools] = TurnGaps()
        gaps._gaps = {at: TurnGap(ended_s, seconds) for at, ended_s, seconds in known}
        gaps._next = following
    for name, tenant, number, num_blocks, priority in snapshot.kept:
        kept = KeptName(tenant_of(tenant), number, num_blocks, priority)
        shares.add(name, kept, shares._weights[kept.tenant])
    for turn in snapshot.unsaid:
        digests = list(map(digest_of, numbers_of(turn.digests)))
        session = found[turn.session]
        sessions._unsaid[turn.request_id] = EndedTurn(session, digests, len(digests), turn.priority)
        sessions._num_unsaid += len(digests)
    for name, until_s in snapshot.until:
        sessions._until_of[name] = until_s
        if until_s < inf:
            heappush(sessions._until, (until_s, name))
    sessions._num_sessions = snapshot.num_sessions
    sessions._num_held = sum(each.is_held for each in requests.values())
    sessions._held_since_s = snapshot.held_since_s


def _all(sessions: Sessions, requests: Mapping[str, Request]) -> dict[KnownSession, list[str]]:
    """Return all sessions, those between two turns first, with the ids of their live requests."""
    found: dict[KnownSession, list[str]] = {each: [] for each in sessions._table._idle.values()}
    for request in requests.values():
        if request.session is not None:
            found.setdefault(request.session, []).append(request.id)
    for turn in sessions._unsaid.values():
        found.setdefault(turn.session, [])
    return found


def _snapshot_session(
    session: KnownSession, request_ids: list[str], numbers: DigestNumbers, tenants: TenantNumbers
) -> SessionSnapshot:
    def mark_of(mark: BlockMark) -> MarkSnapshot:
        return mark.block, numbers.numbers([mark.digest])[0]

    return SessionSnapshot(
        session.number,
        tenants.number(session.tenant),
        tenants.session(session.name),
        session.started_s,
        session.num_first,
        session.num_turns,
        session.num_prompt,
        session.ended_s,
        [mark_of(each) for each in session.tails],
        None if session.middle is None else mark_of(session.middle),
        session.turn_id,
        session.endpoint,
        session.weight,
        session.calls_tools,
        session.gap,
        session.gap_calls_tools,
        session.own_gaps,
        request_ids,
    )


def _restored_session(each: SessionSnapshot) -> KnownSession:
    return KnownSession(
        each.number,
        tenant_of(each.tenant),
        tenant_of(each.name),
        each.started_s,
        each.num_first,
        each.num_turns,
        each.num_prompt,
        each.ended_s,
        tuple(BlockMark(index, digest_of(number)) for index, number in each.tails),
        None if each.middle is None else BlockMark(each.middle[0], digest_of(each.middle[1])),
        each.turn_id,
        each.endpoint,
        each.weight,
        each.calls_tools,
        each.gap,
        each.gap_calls_tools,
        list(each.own_gaps),
    )
