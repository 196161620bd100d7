"""Loads the beginnings of prompts from a slower store while their requests wait.

Threads read and check parts of some megabytes; between steps the parts that are read go into blocks
of the prefix cache, where requests find them as any others. A load ends at the first block that is
not what it should be: what is behind it is computed.

A model with recurrent layers goes on where a state is. So the state at the end of a load is read
first: without it the blocks before it would be of no use. Where a read fails, or memory is short,
the load goes on for the last state before.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from quire.cache.block_hash import STATE_GROUP
from quire.cache.chain import Chain, Content
from quire.cache.transfers import BlockPosition
from quire.engine.persistence.block_port import BlockPort, row_views
from quire.scheduler.reasons import LoadSource
from quire.storage.disk.block_header import identity_of
from quire.storage.disk.block_source import BlockSource

logger = logging.getLogger(__name__)

NUM_THREADS = 2
MAX_READING_PARTS = 4
"""The most that is read, or waits to go into blocks, at a time, in parts of the largest size: more
would leave the processor's caches before it is used. A part has blocks or a state."""
TAKE_IN_S = 0.004
"""Seconds between two steps after which no further part is begun."""
MAX_LOAD_S = 10.0
"""A request waits no longer for a store that hangs."""
LATENCY_S = 0.001
DECAY = 0.9
RETRIED = 32
"""One of this number of loads that seem slower than computing is done, to measure the store again.
"""


class Source(NamedTuple):
    """A slower store; `renew` notes that a block which memory has is of use there too."""

    kind: LoadSource
    blocks: BlockSource
    renew: Callable[[Content], None]


class _Read(NamedTuple):
    """The number of leading blocks of a part that are whole, and the seconds it took."""

    num_blocks: int
    seconds: float


class _Part(NamedTuple):
    places: Sequence[BlockPosition]
    rows: Tensor
    read: "Future[_Read]"


@dataclass(slots=True)
class _Load:
    """A load for the first of `requests`; the others wait for some of its blocks. It is cut if not
    all could be read or had room."""

    chain: Chain
    max_blocks: int
    num_here: int
    num_blocks: int
    missing: Sequence[BlockPosition]
    requests: list[str]
    began_s: float = 0.0
    num_begun: int = 0
    num_bytes: int = 0
    read_s: float = 0.0
    take_in_s: float = 0.0
    is_cut: bool = False
    parts: deque[_Part] = field(default_factory=deque)

    @property
    def is_done(self) -> bool:
        return not self.parts and self.num_begun >= len(self.missing)

    def hangs(self, now: float) -> bool:
        """Return whether its first part is read for too long."""
        is_read = bool(self.parts) and self.parts[0].read.done()
        return bool(self.parts) and not is_read and now - self.began_s > MAX_LOAD_S

    def stop(self) -> None:
        """Load no more."""
        self.num_begun = len(self.missing)
        for part in self.parts:
            part.read.cancel()
        self.parts.clear()


class BlockLoader:
    """Decides which blocks are loaded from a source, and loads them. `root` is the parent's digest
    of every first block. A request for which there is nothing to load here, or nothing more, goes
    on to `then`."""

    def __init__(
        self,
        source: Source,
        port: BlockPort,
        root: bytes,
        clock: Callable[[], float],
        then: Callable[[str], None],
    ) -> None:
        self._kind, self._source, self._renew = source
        self._port = port
        self._root = root
        self._clock = clock
        self._then = then
        name = f"prefix cache reader, {self._kind}"
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix=name)
        self._under_way: list[_Load] = []
        self._reading: list[_Part] = []
        self._hangs = False
        self._seconds = self._bytes = 0.0
        self._num_declined = 0

    @property
    def is_loading(self) -> bool:
        return bool(self._under_way)

    def begin(self, request_id: str, *, is_first: bool = True, below: int | None = None) -> None:
        """Let the request wait, if the source has more of its prompt than memory has and reading
        that costs less than computing it. It looks for fewer blocks than `below`, if given."""
        asked = self._port.loads.chain_of(request_id) if self._source.num_blocks else None
        if asked is None:
            self._then(request_id)
            return
        chain, max_blocks = asked
        if below is not None:
            max_blocks = min(max_blocks, below - 1)
        found = self._port.transfers.find(chain, max_blocks, self._source.has)
        num_more = found.num_blocks - found.num_here
        if found.num_here:
            self._renew(chain.content(found.num_here - 1))
        other = self._load_of(found.missing) if found.missing else None
        is_read = other is not None or (
            bool(found.missing) and self._is_worth(num_more, found.missing)
        )
        if is_first:
            self._source.counts.add(
                num_misses=max_blocks - found.num_blocks,
                **{"num_hits" if is_read else "num_declined": num_more},
            )
        if not is_read:
            self._then(request_id)
            return
        if other is not None:
            other.requests.append(request_id)
        else:
            self._under_way.append(_Load(chain, max_blocks, *found, [request_id]))
            self._begin_parts()
        self._port.loads.begin(request_id, self._kind)

    def take_in(self) -> None:
        """Add the loaded blocks, and let requests with finished loads continue."""
        now = self._clock()
        end_s = now + TAKE_IN_S
        for load in tuple(self._under_way):
            if load.hangs(now):
                logger.warning(
                    "the %s of the prefix cache hangs: prompts are computed instead", self._kind
                )
                self._hangs = True
            if self._hangs or not any(map(self._port.loads.has, load.requests)):
                load.stop()
            while load.parts and load.parts[0].read.done() and self._clock() < end_s:
                self._take_in_part(load, load.parts.popleft())
            if load.is_done:
                self._end(load)
        self._begin_parts()

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` until a part is read."""
        firsts = [load.parts[0].read for load in self._under_way if load.parts]
        wait(firsts, seconds, FIRST_COMPLETED)

    def stop(self) -> None:
        """Stop all loads; their requests continue."""
        for load in tuple(self._under_way):
            load.stop()
            self._end(load, is_over=True)

    def close(self) -> None:
        """Read nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _load_of(self, missing: Sequence[BlockPosition]) -> _Load | None:
        """Return a load of some of these blocks."""
        keys = {place.key for place in missing}
        return next(
            (load for load in self._under_way if any(place.key in keys for place in load.missing)),
            None,
        )

    def _is_worth(self, num_blocks: int, missing: Sequence[BlockPosition]) -> bool:
        """Return whether to read the `missing` for `num_blocks` of a prompt: not while the store
        hangs or every state is held, nor where computing these costs less."""
        if self._hangs:
            if any(not part.read.done() for part in self._reading):
                return False
            self._hangs = False
        transfers = self._port.transfers
        if missing[0].group == STATE_GROUP and not transfers.num_loadable_states:
            return False
        if not self._bytes:
            return True
        load_s = LATENCY_S + self._port.num_bytes(missing) * self._seconds / self._bytes
        num_tokens = num_blocks * transfers.block_size
        if self._port.loads.prefers_load(num_tokens, load_s):
            return True
        self._num_declined += 1
        return self._num_declined % RETRIED == 0

    def _begin_parts(self) -> None:
        """Read on, as far as memory for it goes."""
        self._reading = [part for part in self._reading if not part.read.done()]
        held = {id(part): part for load in self._under_way for part in load.parts}
        held |= {id(part): part for part in self._reading}
        num_parts = sum(self._size(part.places) for part in held.values())
        for load in self._under_way:
            while load.num_begun < len(load.missing):
                places = self._next_places(load)
                num_parts += self._size(places)
                if held and num_parts > MAX_READING_PARTS:
                    return
                if not load.num_begun:
                    load.began_s = self._clock()
                part = self._part(load.chain, places)
                held[id(part)] = part
                load.parts.append(part)
                load.num_begun += len(places)
                self._reading.append(part)

    def _next_places(self, load: _Load) -> Sequence[BlockPosition]:
        """Return the places of the next part: a state, or blocks."""
        first, most = load.num_begun, 1
        if load.missing[first].group != STATE_GROUP:
            most = self._port.rows_of(load.missing[first].group).max_rows
        return load.missing[first : first + most]

    def _size(self, places: Sequence[BlockPosition]) -> float:
        """Return the size of a part, 1 for the largest of its kind."""
        return len(places) / self._port.rows_of(places[0].group).max_rows

    def _part(self, chain: Chain, places: Sequence[BlockPosition]) -> _Part:
        contents = [chain.content(place.block_index) for place in places]
        rows = self._port.rows_of(places[0].group).new_rows(len(places))
        return _Part(places, rows, self._threads.submit(self._read, contents, places, rows))

    def _read(
        self, contents: Sequence[Content], places: Sequence[BlockPosition], rows: Tensor
    ) -> _Read:
        """Read blocks up to the first that is not there; this runs in a thread."""
        began = time.perf_counter()
        identities = [
            identity_of(content, place.group, self._root)
            for content, place in zip(contents, places, strict=True)
        ]
        num_read = self._source.get(identities, row_views(rows, len(places)))
        return _Read(num_read, time.perf_counter() - began)

    def _take_in_part(self, load: _Load, part: _Part) -> None:
        began, read = time.perf_counter(), part.read.result()
        places = part.places[: read.num_blocks]
        num_here = self._port.take_in(load.chain, places, part.rows, load.requests[0])
        load.num_bytes += self._port.num_bytes(places)
        load.read_s += read.seconds
        load.take_in_s += time.perf_counter() - began
        if num_here < len(part.places):
            load.is_cut = True
            load.stop()

    def _end(self, load: _Load, *, is_over: bool = False) -> None:
        """Let the requests of a load continue. Those that waited for another's load may load more,
        unless `is_over`."""
        self._under_way.remove(load)
        if load.num_bytes:
            seconds = load.read_s / NUM_THREADS + load.take_in_s
            self._seconds = self._seconds * DECAY + seconds
            self._bytes = self._bytes * DECAY + load.num_bytes
        transfers, loads, now = self._port.transfers, self._port.loads, self._clock()
        num_here = transfers.find(load.chain, load.max_blocks, lambda key: False).num_here
        num_tokens = max(num_here - load.num_here, 0) * transfers.block_size
        self._source.counts.add(num_loaded_tokens=num_tokens)
        for request_id in load.requests:
            loads.end(request_id, num_tokens if request_id == load.requests[0] else 0, now)
        if not is_over:
            if load.is_cut and self._port.state_rows is not None:
                self.begin(load.requests[0], is_first=False, below=load.num_blocks)
            else:
                self._then(load.requests[0])
            for request_id in load.requests[1:]:
                self.begin(request_id, is_first=False)
