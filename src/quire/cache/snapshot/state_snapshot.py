"""The states of recurrent layers in a snapshot of a cache, with numbers in place of digests."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from quire.cache.chain import Content
from quire.cache.snapshot.digest_numbers import NO_KEY, DigestNumbers, digest_of
from quire.cache.states.state_cache import StateCache
from quire.cache.states.state_pool import Snapshot
from quire.cache.states.state_table import KeptState, StateTable
from quire.cache.states.state_use import StateWrite


class FindableState(NamedTuple):
    """A state that can be found, as in `Snapshot`, by the numbers of digests."""

    state_id: int
    digest: int
    num_blocks: int
    before: int
    num_saved: int
    used: int
    num_hits: int


class StatesSnapshot(NamedTuple):
    """The states that are free, from the last to be taken on, the references of each, those that
    can be found, the time of their uses, and the numbers of remembered digests."""

    free: list[int]
    num_refs: list[int]
    found: list[FindableState]
    time: int
    seen: list[int]


class StateTableSnapshot(NamedTuple):
    """The states of one request, as in `StateTable`."""

    live: int
    current: int
    position: int
    num_known: int
    num_saved: int
    wanted: list[int]
    pending: list[tuple[int, int]]
    kept: list[tuple[int, int]]
    last_output: int


def digests_of_states(cache: StateCache) -> Iterator[bytes]:
    """Yield the digests that the states know."""
    yield from cache._seen
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
    found = [
        FindableState(
            each.state_id,
            _number(digest, numbers),
            each.num_blocks,
            _number(each.before, numbers),
            each.num_saved,
            each.used,
            each.num_hits,
        )
        for digest, each in pool._snapshots.items()
    ]
    seen = numbers.numbers(cache._seen)
    return StatesSnapshot(list(pool._free), list(pool._num_refs), found, pool._time, seen)


def restore_states(
    cache: StateCache, snapshot: StatesSnapshot, content_of: Callable[[int], Content]
) -> None:
    """Restore the states of a new cache; `content_of` gives the content of a digest's number."""
    pool = cache._pool
    pool._free, pool._num_refs = list(snapshot.free), list(snapshot.num_refs)
    pool._time = snapshot.time
    for each in snapshot.found:
        digest = digest_of(each.digest)
        pool._digest_of[each.state_id] = digest
        pool._snapshots[digest] = Snapshot(
            each.state_id,
            content_of(each.digest),
            each.num_blocks,
            _digest(each.before),
            each.num_saved,
            each.used,
            each.num_hits,
        )
    cache._seen.update(dict.fromkeys(map(digest_of, snapshot.seen)))


def snapshot_state_table(states: StateTable, numbers: DigestNumbers) -> StateTableSnapshot:
    """Return a snapshot of a request's states."""
    return StateTableSnapshot(
        states.live,
        states.current,
        states.position,
        states.num_known,
        states.num_saved,
        list(states.wanted),
        [(end, state_id) for end, state_id in states.pending],
        [(end, state_id) for end, state_id in states.kept],
        _number(states.last_output, numbers),
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
        [StateWrite(*each) for each in snapshot.pending],
        [KeptState(*each) for each in snapshot.kept],
        _digest(snapshot.last_output),
    )


def _number(digest: bytes | None, numbers: DigestNumbers) -> int:
    return NO_KEY if digest is None else numbers.numbers([digest])[0]


def _digest(number: int) -> bytes | None:
    return None if number == NO_KEY else digest_of(number)
