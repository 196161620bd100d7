"""Knows which blocks the steps under way compute, and who had better wait for them than compute
them too.

Equal prompts that arrive together find nothing cached. One of them computes what they have in
common; the others wait for the step that does, and find it. Only waiting requests wait, and only
for running ones, so that there is no circle; and a result that comes, or a request that leaves,
ends every wait for it.

Others wait for a prefix that is read from a slower store.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quire.cache.block_copies import BlockCopy
from quire.cache.chain import Chain
from quire.cache.kv_cache import KVCache
from quire.scheduler.accounts import Counters
from quire.scheduler.cost import CostModel
from quire.scheduler.reasons import LoadSource
from quire.scheduler.request import Request

MAX_STEPS = 8
"""The maximum number of steps that a request waits for prefixes in total."""


class ScheduledChunk(NamedTuple):
    """The keys of the full blocks that end in a chunk, and the position where the chunk ends."""

    end: int
    keys: tuple[bytes, ...]


class PrefixWait(NamedTuple):
    """The blocks that a waiting request waits for: it will find `num_tokens` more than the
    `num_found` that it would now, computed by the request `other`, and need `num_blocks` for the
    rest. The last of those tokens' blocks has `key`.
    """

    num_tokens: int
    num_found: int
    num_blocks: int
    key: bytes
    other: str


class PrefixWaits:
    """The blocks that are being computed, and the requests that wait for them.

    A block is listed from when its tokens are scheduled until the result has come or its request
    has left. Whether one is still computed is one look-up, whatever the number of requests.
    """

    def __init__(self, cache: KVCache, *, is_enabled: bool) -> None:
        self._cache = cache
        block = cache.prefix_recompute_cost(1)
        self._num_groups, self._block_size = block.num_blocks, block.num_tokens
        self._is_enabled = is_enabled
        self._computing: dict[bytes, Request] = {}
        self._scheduled: dict[Request, list[ScheduledChunk]] = {}
        self._awaited: dict[Request, PrefixWait] = {}
        self._num_steps: dict[Request, int] = {}

    def add_chunk(self, request: Request, start: int, end: int) -> None:
        """Note that a step computes the request's tokens `start .. end`."""
        num_known = min(end, len(request.token_ids))
        first, last = start // self._block_size, num_known // self._block_size
        if first >= last or not self._is_enabled:
            return
        keys = tuple(self._cache.block_keys(request.table, request.token_ids)[first:last])
        for key in keys:
            self._computing.setdefault(key, request)
        self._scheduled.setdefault(request, []).append(ScheduledChunk(end, keys))

    def advance(self, request: Request, num_computed: int) -> None:
        """Note that the result for the request's first `num_computed` tokens has come."""
        scheduled = self._scheduled.get(request, [])
        while scheduled and scheduled[0].end <= num_computed:
            self._remove(request, scheduled.pop(0).keys)
        if not scheduled:
            self._scheduled.pop(request, None)

    def drop(self, request: Request) -> None:
        """Note that the request runs or waits no more: what it was computing will not be cached."""
        for scheduled in self._scheduled.pop(request, ()):
            self._remove(request, scheduled.keys)
        self._forget(request)

    def clear(self) -> None:
        """Note that nothing that is being computed will be found."""
        self._computing.clear()
        self._scheduled.clear()

    def admit(self, request: Request) -> None:
        """Note that the request waits no more and runs."""
        self._forget(request)

    def wait(self, request: Request) -> bool:
        """Note that the request waits one step more; return whether it is its first."""
        self._num_steps[request] = num_steps = self._num_steps.get(request, 0) + 1
        return num_steps == 1

    def awaited(self, request: Request, *, use_host: bool) -> PrefixWait | None:
        """Return the computation that continues the request's prefix hit, or None. The answer is
        also None if the request has waited long enough."""
        if not self._computing or self._num_steps.get(request, 0) >= MAX_STEPS:
            return None
        known = self._awaited.get(request)
        if known is not None and known.key in self._computing:
            return known
        awaited = self._look_up(request, use_host=use_host)
        if awaited is None:
            self._awaited.pop(request, None)
        else:
            self._awaited[request] = awaited
        return awaited

    def num_coming(self, request: Request) -> int:
        """Return the leading tokens of a new request's prompt that are found now or being computed:
        all but the last where it forks from another. This takes the hashes of the prompt's blocks,
        and looks at each that is found."""
        if request.new.needs_all_rows:
            return 0
        if request.new.fork_of is not None:
            return request.num_prompt_tokens - 1
        return self._reach(request, use_host=True)[1] * self._block_size

    def continues(self, request: Request, num_tokens: int) -> bool:
        """Return whether the block of the request's prompt after its first `num_tokens` is being
        computed."""
        if not self._computing or request.new.needs_all_rows:
            return False
        keys = self._cache.block_keys(request.table, request.token_ids)
        index = num_tokens // self._block_size
        return index < len(keys) and keys[index] in self._computing

    def _look_up(self, request: Request, *, use_host: bool) -> PrefixWait | None:
        first, end = self._reach(request, use_host=use_host)
        if end == first:
            return None
        size, num_tokens = self._block_size, len(request.token_ids)
        key = self._cache.block_keys(request.table, request.token_ids)[end - 1]
        num_blocks = self._num_groups * (-(-num_tokens // size) - end)
        other = self._computing[key].id
        return PrefixWait((end - first) * size, first * size, num_blocks, key, other)

    def _reach(self, request: Request, *, use_host: bool) -> tuple[int, int]:
        """Return how many leading blocks of the request would be found now, and how many when all
        that is being computed is done."""
        table, token_ids, size = request.table, request.token_ids, self._block_size
        first = self._cache.num_cached(table, token_ids, use_host=use_host) // size
        keys = self._cache.block_keys(table, token_ids)
        end, most = first, (len(token_ids) - 1) // size
        while end < min(most, len(keys)) and keys[end] in self._computing:
            end += 1
        while end > first and not self._will_find(keys[end - 1], end):
            end -= 1
        return first, end

    def _will_find(self, key: bytes, num_blocks: int) -> bool:
        """Return whether all up to a block that is being computed will be found."""
        table = self._computing[key].table
        return self._cache.will_find(table, num_blocks * self._block_size)

    def _remove(self, request: Request, keys: Iterable[bytes]) -> None:
        for key in keys:
            if self._computing.get(key) is request:
                del self._computing[key]

    def _forget(self, request: Request) -> None:
        self._awaited.pop(request, None)
        self._num_steps.pop(request, None)


class PrefixLoads:
    """Knows which of the scheduler's `requests` wait while the beginning of their prompts is read
    from a slower store. They are not admitted until that has ended, and hold nobody up.
    """

    def __init__(
        self, requests: Mapping[str, Request], cost: CostModel, counters: Counters
    ) -> None:
        self._requests = requests
        self._cost = cost
        self._counters = counters

    def chain_of(self, request_id: str) -> tuple[Chain, int] | None:
        """Return the chain of a request and how many of its blocks may be found when it is
        admitted; None where it is not here, looks for none, or takes those of another request."""
        request = self._requests.get(request_id)
        if request is None or request.new.needs_all_rows:
            return None
        if request.new.fork_of is not None and not request.num_outputs:
            return None
        chain = request.table.chain
        chain.extend(request.token_ids)
        num_blocks = len(chain.digests)
        if num_blocks and chain.num_tokens == len(request.token_ids):
            num_blocks -= 1  # the last token is always computed
        return chain, num_blocks

    def has(self, request_id: str) -> bool:
        """Return whether the request is still here."""
        return request_id in self._requests

    def prefers_load(self, num_tokens: int, load_s: float) -> bool:
        """Return whether loading `num_tokens` is faster than computing them; True without a
        measured compute speed."""
        token_s = self._cost.token_s
        return token_s is None or load_s < num_tokens * token_s

    def begin(self, request_id: str, source: LoadSource) -> None:
        """Let the request wait for blocks that are read from `source`."""
        if request_id in self._requests:
            self._requests[request_id].loading_from = source

    def end(self, request_id: str, num_tokens: int, now: float) -> None:
        """Let the request be admitted, if it is still here, with `num_tokens` that were loaded for
        it."""
        request = self._requests.get(request_id)
        if request is None or request.loading_from is None:
            return
        source, request.loading_from = request.loading_from, None
        if num_tokens:
            request.num_loaded += num_tokens
            request.num_from_peers += num_tokens if source is LoadSource.PEER else 0
            request.note(now, source.loaded_from, num_tokens)

    def note_copies(self, copies: Iterable[BlockCopy]) -> None:
        """Count the copies of loaded blocks."""
        self._counters.note_block_copies(copies)
