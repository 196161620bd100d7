"""The states of recurrent layers in a snapshot of a cache, with numbers in place of digests."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from quire.cache.chain import Content
from quire.cache.snapshot.digest_numbers import NO_KEY, DigestNumbers, digest_of
from quire.cache.states.host_states import HostState
from quire.cache.states.planned_places import PlaceUse
from quire.cache.states.policy import SnapshotPlace
from quire.cache.states.state_cache import StateCache
from quire.cache.states.state_pool import Snapshot
from quire.cache.states.state_table import KeptState, PendingState, StateTable


class FindableState(NamedTuple):
    """A state that can be found, as in `Snapshot`, by the numbers of digests."""

    state_id: int
    digest: int
    num_blocks: int
    kind: int
    before: int
    num_saved: int
    used: int
    level: float
    num_hits: int
    num_lent: float
    priority: float


class FindableHostState(NamedTuple):
    """A state of the host that can be found, as in `HostState`, by the number of its digest."""

    digest: int
    state_id: int
    num_blocks: int
    kind: int


class HostStatesSnapshot(NamedTuple):
    """The states of the host: free ones, those that can be found, from the first to be evicted on,
    and those of swapped requests. Evicted snapshots that save fewer than `least_tokens` do not
    come here."""

    free: list[int]
    cached: list[FindableHostState]
    swapped: list[int]
    least_tokens: int


class StatesSnapshot(NamedTuple):
    """The states that are free, from the last to be taken on, the references of each, those that
    can be found, the time of their uses, the priority of the last that was evicted, the numbers of
    remembered digests, the places of snapshots (digest, and use as in `PlaceUse`), the counts of
    each use (the use, how many were found, how many there were), and those of the host."""

    free: list[int]
    num_refs: list[int]
    found: list[FindableState]
    time: int
    level: float
    seen: list[int]
    places: list[tuple[int, PlaceUse]]
    counts: list[tuple[PlaceUse, int, int]]
    host: HostStatesSnapshot


class StateTableSnapshot(NamedTuple):
    """The states of one request, as in `StateTable`."""

    live: int
    current: int
    position: int
    num_known: int
    num_saved: int
    wanted: list[SnapshotPlace]
    pending: list[PendingState]
    kept: list[KeptState]
    last_output: int
    num_output_blocks: int


def digests_of_states(cache: StateCache) -> Iterator[bytes]:
    """Yield the digests that the states know."""
    yield from cache._seen
    yield from cache._host._cached
    yield from cache._pool._places._places
    for digest, each in cache._pool._snapshots.items():
        yield digest
        if each.before is not None:
            yield each.before


def digests_of_table(states: StateTable | None) -> Iterator[bytes]:
    """Yield the digests that a request's states know."""
    if states is not None and states.last_output is not None:
        yield states.last_output


def snapshot_states(cache: StateCache, numbers: DigestNumbers) -> StatesSnapshot:
    """Return a snapshot of all states, whose digests must have `numbers`."""
    pool = cache._pool
    places = pool._places
    found = [
        FindableState(
            each.state_id,
            _number(digest, numbers),
            each.num_blocks,
            each.kind,
            _number(each.before, numbers),
            each.num_saved,
            each.used,
            each.level,
            each.num_hits,
            each.num_lent,
            each.priority,
        )
        for digest, each in pool._snapshots.items()
    ]
    return StatesSnapshot(
        list(pool._free),
        list(pool._num_refs),
        found,
        pool._time,
        pool._level,
        numbers.numbers(cache._seen),
        [(_number(digest, numbers), use) for digest, use in places._places.items()],
        [(use, num_uses, num) for use, (num_uses, num) in places._counts.items()],
        _snapshot_host(cache, numbers),
    )


def _snapshot_host(cache: StateCache, numbers: DigestNumbers) -> HostStatesSnapshot:
    host = cache._host
    cached = [
        FindableHostState(_number(digest, numbers), each.state_id, each.num_blocks, each.kind)
        for digest, each in host._cached.items()
    ]
    return HostStatesSnapshot(list(host._free), cached, sorted(host._swapped), cache.least_tokens)


def restore_states(
    cache: StateCache, snapshot: StatesSnapshot, content_of: Callable[[int], Content]
) -> None:
    """Restore the states of a new cache; `content_of` gives the content of a digest's number."""
    pool = cache._pool
    pool._free, pool._num_refs = list(snapshot.free), list(snapshot.num_refs)
    pool._num_held = sum(map(bool, pool._num_refs))
    pool._time, pool._level = snapshot.time, snapshot.level
    for each in snapshot.found:
        digest = digest_of(each.digest)
        pool._digest_of[each.state_id] = digest
        pool._snapshots[digest] = Snapshot(
            each.state_id,
            content_of(each.digest),
            each.num_blocks,
            each.kind,
            _digest(each.before),
            each.num_saved,
            {},
            each.used,
            each.level,
            each.num_hits,
            each.num_lent,
            each.priority,
        )
    for digest, found in pool._snapshots.items():
        if found.before is not None:
            pool._snapshots[found.before].after[digest] = None
    pool._sort()
    pool._places._places.update((digest_of(number), use) for number, use in snapshot.places)
    pool._places._counts.update((use, (uses, num)) for use, uses, num in snapshot.counts)
    cache._seen.update(dict.fromkeys(map(digest_of, snapshot.seen)))
    host, cache.least_tokens = snapshot.host, snapshot.host.least_tokens
    cache._host._free, cache._host._swapped = list(host.free), set(host.swapped)
    for kept in host.cached:
        cache._host._cached[digest_of(kept.digest)] = HostState(
            kept.state_id, content_of(kept.digest), kept.num_blocks, kept.kind
        )


def snapshot_state_table(states: StateTable, numbers: DigestNumbers) -> StateTableSnapshot:
    """Return a snapshot of a request's states."""
    return StateTableSnapshot(
        states.live,
        states.current,
        states.position,
        states.num_known,
        states.num_saved,
        list(states.wanted),
        list(states.pending),
        list(states.kept),
        _number(states.last_output, numbers),
        states.num_output_blocks,
    )


def restored_state_table(snapshot: StateTableSnapshot) -> StateTable:
    """Return the states that the snapshot says."""
    return StateTable(
        snapshot.live,
        snapshot.current,
        snapshot.position,
        snapshot.num_known,
        snapshot.num_saved,
        list(snapshot.wanted),
        list(snapshot.pending),
        list(snapshot.kept),
        _digest(snapshot.last_output),
        snapshot.num_output_blocks,
    )


def _number(digest: bytes | None, numbers: DigestNumbers) -> int:
    return NO_KEY if digest is None else numbers.numbers([digest])[0]


def _digest(number: int) -> bytes | None:
    return None if number == NO_KEY else digest_of(number)
