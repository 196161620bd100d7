"""A snapshot of the prefix waits, by the numbers of digests."""

from collections.abc import Mapping
from typing import NamedTuple

from quire.cache.snapshot.digest_numbers import DigestNumbers, digest_of
from quire.scheduler.prefix_waits import PrefixWait, PrefixWaits, ScheduledChunk
from quire.scheduler.request import Request


class PrefixWaitSnapshot(NamedTuple):
    """The request that waits, and the fields of `PrefixWait`."""

    request_id: str
    num_tokens: int
    num_found: int
    num_blocks: int
    number: int
    other: str


class WaitsSnapshot(NamedTuple):
    """The fields of `PrefixWaits`, with ids in place of requests."""

    computing: list[tuple[int, str]]
    scheduled: list[tuple[str, list[tuple[int, list[int]]]]]
    awaited: list[PrefixWaitSnapshot]
    num_steps: list[tuple[str, int]]


def snapshot_waits(waits: PrefixWaits, numbers: DigestNumbers) -> WaitsSnapshot:
    """Return a snapshot; the digests must have `numbers`."""
    computing = zip(numbers.numbers(waits._computing), waits._computing.values(), strict=True)
    awaited = zip(
        waits._awaited.items(),
        numbers.numbers(each.key for each in waits._awaited.values()),
        strict=True,
    )
    return WaitsSnapshot(
        [(number, request.id) for number, request in computing],
        [
            (request.id, [(chunk.end, numbers.numbers(chunk.keys)) for chunk in chunks])
            for request, chunks in waits._scheduled.items()
        ],
        [
            PrefixWaitSnapshot(
                request.id, each.num_tokens, each.num_found, each.num_blocks, number, each.other
            )
            for (request, each), number in awaited
        ],
        [(request.id, num_steps) for request, num_steps in waits._num_steps.items()],
    )


def restore_waits(
    waits: PrefixWaits,
    snapshot: WaitsSnapshot,
    requests: Mapping[str, Request],
) -> None:
    """Restore new waits from the snapshot, for live requests by id."""
    for number, request_id in snapshot.computing:
        waits._computing[digest_of(number)] = requests[request_id]
    for request_id, chunks in snapshot.scheduled:
        waits._scheduled[requests[request_id]] = [
            ScheduledChunk(end, tuple(map(digest_of, keys))) for end, keys in chunks
        ]
    for each in snapshot.awaited:
        key = digest_of(each.number)
        waits._awaited[requests[each.request_id]] = PrefixWait(
            each.num_tokens, each.num_found, each.num_blocks, key, each.other
        )
    for request_id, num_steps in snapshot.num_steps:
        waits._num_steps[requests[request_id]] = num_steps
