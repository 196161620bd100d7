"""The events of the prefix cache for subscribers, numbered and kept in a bounded ring.

Each subscriber reads the ring at its own speed: nothing is kept for it, and one that falls behind
the ring's end gets a `Gap`.
"""

import asyncio
from collections import deque
from itertools import islice

import msgspec

from quire.cache.kv_events import KVEvent, KVEventKind
from quire.engine.messages import EngineOutput

MAX_EVENTS = 10_000
MAX_BYTES = 64 << 20


class BlockStored(msgspec.Struct, frozen=True):
    block_hashes: tuple[str, ...]
    parent_block_hash: str | None
    token_ids: tuple[int, ...]
    block_size: int
    group_idx: int
    medium: str
    lora_name: str | None
    type: str = KVEventKind.STORED


class BlockRemoved(msgspec.Struct, frozen=True):
    block_hashes: tuple[str, ...]
    group_idx: int
    medium: str
    type: str = KVEventKind.REMOVED


class AllBlocksCleared(msgspec.Struct, frozen=True):
    type: str = KVEventKind.CLEARED


class Gap(msgspec.Struct, frozen=True):
    """Some events between `after` and `resumes_at` are lost, perhaps with a server before this
    one."""

    after: int
    resumes_at: int
    type: str = "Gap"


def gap_frame(after: int, resumes_at: int) -> bytes:
    """Return the event of a gap, which has no id: a client that ends here comes back with the id
    before the gap."""
    return b"event: gap\ndata: " + msgspec.json.encode(Gap(after, resumes_at)) + b"\n\n"


class KVEventFeed:
    """Keeps the events from `oldest_id` up to, without, `next_id`. `first_id` is above every id of
    a server that ran before."""

    def __init__(
        self, first_id: int, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self.next_id = first_id
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._num_bytes = 0
        self._news = asyncio.Event()

    @property
    def oldest_id(self) -> int:
        return self.next_id - len(self._frames)

    def on_cleared(self) -> None:
        """Tell that nothing is cached any more: the engine is gone."""
        cleared = AllBlocksCleared()
        self._append(b"id: %d\ndata: %s\n\n" % (self.next_id, msgspec.json.encode(cleared)))
        self._tell()

    def on_output(self, output: EngineOutput) -> None:
        for event in output.kv_events:
            self._append(_frame(self.next_id, event))
        if output.kv_events:
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _append(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._num_bytes += len(frame)
        self.next_id += 1
        while len(self._frames) > self._max_events or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._frames.popleft())

    def holds(self, id: int) -> bool:
        """Return whether the event is kept or is the one that comes next."""
        return self.oldest_id <= id <= self.next_id

    async def read(self, id: int, most: int) -> list[bytes]:
        """Wait for the event `id`; return at most `most` events from it on, or none if it is
        lost."""
        while id == self.next_id:
            await self._news.wait()
        if not self.holds(id):
            return []
        start = id - self.oldest_id
        return list(islice(self._frames, start, start + most))


def _frame(id: int, event: KVEvent) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (id, msgspec.json.encode(_body(event)))


def _body(event: KVEvent) -> BlockStored | BlockRemoved | AllBlocksCleared:
    hashes = tuple(each.hex() for each in event.block_hashes)
    if event.kind is KVEventKind.CLEARED:
        return AllBlocksCleared()
    if event.kind is KVEventKind.REMOVED:
        return BlockRemoved(hashes, event.group, event.medium)
    return BlockStored(
        hashes,
        None if event.parent is None else event.parent.hex(),
        event.token_ids,
        len(event.token_ids) // max(len(hashes), 1),
        event.group,
        event.medium,
        event.adapter or None,
    )
