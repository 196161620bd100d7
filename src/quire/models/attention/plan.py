"""A plan contains the gather indices and masks of the reference backend. It is worked out once per
step for all layers of one block table that see alike.

No index ever points past a sequence's own context, nor before what its queries see: padding repeats
its last slot, so that nothing another request left in memory, not even a NaN, can reach this one's
output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.models.attention.softmax import is_written_out
from quire.models.batch import Batch
from quire.models.config import LayerFacts

MAX_PADDING = 2
"""A bucket gathers at most this many times the tokens that its sequences can see."""
MAX_BUCKET_TOKENS = {"cpu": 4096, "cuda": 32768}
"""A bucket has at most so many tokens in all, unless a single sequence is longer: what a CPU's
cache holds, and for a GPU a bound on memory."""
QUERY_TILE = 256
"""Queries of a chunk that share one mask, and so the most rows a mask can have."""


def max_bucket_tokens(device_type: str) -> int:
    return MAX_BUCKET_TOKENS.get(device_type, MAX_BUCKET_TOKENS["cuda"])


@dataclass(frozen=True, slots=True)
class DecodeBucket:
    """One-token chunks of similar length, padded to the longest.

    rows: [S], their tokens in the batch.
    slots: [S * L], the slots that each sees, L for each row.
    mask: None where all see L tokens.
    """

    rows: Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Some queries of a chunk, and the keys that they see.

    rows: the queries in the batch. keys: in what the chunk gathers.
    mask: None where there are as many keys as queries, and each query sees the keys up to its own.
    """

    rows: slice
    keys: slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class TiledChunk:
    """A chunk of several tokens, in tiles.

    slots: the slots that its queries attend to; None without earlier context, where its own K and V
        suffice.
    """

    rows: slice
    slots: Tensor | None
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The way in which the attention of one block table and pattern is computed in a step."""

    buckets: tuple[DecodeBucket, ...]
    chunks: tuple[TiledChunk, ...]
    is_one_bucket: bool
    """One bucket is the whole batch, in its order: no rows need to be gathered."""


@dataclass(frozen=True, slots=True)
class AttentionPlans:
    """The plans of one step, each made for the first layer that needs it.

    reads_back: chunks without earlier context also see their K and V as the store has them.
    is_eager: the softmax of every layer is written out.
    """

    batch: Batch
    block_size: int
    dtype: torch.dtype
    reads_back: bool = False
    is_eager: bool = False
    plans: dict[tuple[int, AttentionPattern, bool], AttentionPlan] = field(default_factory=dict)
    by_layer: dict[tuple[int, int | None, int | None, bool], AttentionPlan] = field(
        default_factory=dict
    )
    triangles: dict[AttentionPattern, Tensor] = field(default_factory=dict)

    def is_plain(self, layer: LayerFacts) -> bool:
        """Return whether the layer's softmax is written out."""
        return self.is_eager or is_written_out(layer)

    def get(self, table: int, layer: LayerFacts) -> AttentionPlan:
        """Return the plan of a layer. A window that no context exceeds counts as none.

        Where the softmax is written out, no tile has more queries than QUERY_TILE, and each tile
        has a mask.
        """
        is_plain = self.is_plain(layer)
        key = table, layer.window_size, layer.chunk_size, is_plain
        if key not in self.by_layer:
            pattern = layer.pattern
            if pattern.size is not None and pattern.size >= max(self.batch.context_lens):
                pattern = FULL
            self.by_layer[key] = self._plan(table, pattern, is_plain)
        return self.by_layer[key]

    def _plan(self, table: int, pattern: AttentionPattern, is_plain: bool) -> AttentionPlan:
        key = table, pattern, is_plain
        if key not in self.plans:
            self.plans[key] = _Planner(self, table, pattern, is_plain).plan()
        return self.plans[key]

    def triangle(self, pattern: AttentionPattern) -> Tensor:
        """Return the mask of QUERY_TILE queries that are the last of the keys.

        Whether a query sees a key depends on their distance alone, for a tile never crosses the
        edge of a local chunk: so the lower right part of this one is the mask of every other tile.
        """
        if pattern not in self.triangles:
            num_keys = mask_width(pattern, max(self.batch.context_lens))
            device = self.batch.positions.device
            queries = torch.arange(QUERY_TILE, device=device)[:, None]
            keys = torch.arange(num_keys, device=device) - num_keys + QUERY_TILE
            hidden = keys > queries
            if pattern.attention_type is AttentionType.SLIDING and pattern.size is not None:
                hidden |= keys <= queries - pattern.size
            self.triangles[pattern] = _hide(hidden, self.dtype)
        return self.triangles[pattern]


def mask_width(pattern: AttentionPattern, longest: int) -> int:
    """Return the most keys that one tile sees in contexts of up to `longest` tokens."""
    if pattern.size is None:
        return longest
    if pattern.attention_type is AttentionType.CHUNKED:
        return min(longest, pattern.size)
    return min(longest, pattern.size - 1 + QUERY_TILE)


def group_by_length(
    seqs: Sequence[int], lengths: Sequence[int], max_tokens: int
) -> list[list[int]]:
    """Return groups of sequences close enough in length to be padded to the longest."""
    groups: list[list[int]] = []
    longest = total = 0
    for seq in sorted(seqs, key=lambda seq: -lengths[seq]):
        total += lengths[seq]
        padded = (len(groups[-1]) + 1) * longest if groups else 0
        if groups and padded <= min(MAX_PADDING * total, max_tokens):
            groups[-1].append(seq)
        else:
            groups.append([seq])
            longest = total = lengths[seq]
    return [sorted(group) for group in groups]


@dataclass(frozen=True, slots=True)
class _Planner:
    plans: AttentionPlans
    table: int
    pattern: AttentionPattern
    is_plain: bool

    @property
    def batch(self) -> Batch:
        return self.plans.batch

    def plan(self) -> AttentionPlan:
        starts = self.batch.query_starts
        sizes = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        singles = [seq for seq, size in enumerate(sizes) if size == 1]
        seen = [self.num_visible(seq) for seq in range(len(sizes))]
        max_tokens = max_bucket_tokens(self.batch.positions.device.type)
        buckets = tuple(
            self.bucket(seqs, [seen[seq] for seq in seqs])
            for seqs in group_by_length(singles, seen, max_tokens)
        )
        chunks = tuple(self.chunk(seq) for seq, size in enumerate(sizes) if size > 1)
        return AttentionPlan(buckets, chunks, is_one_bucket=not chunks and len(buckets) == 1)

    def num_visible(self, seq: int) -> int:
        """Return how many positions the queries of `seq` see together: the last ones."""
        length = self.batch.context_lens[seq]
        num_new = self.batch.query_starts[seq + 1] - self.batch.query_starts[seq]
        return length - self.pattern.first_needed(length - num_new)

    def bucket(self, seqs: Sequence[int], visible: Sequence[int]) -> DecodeBucket:
        ends = self._longs([self.batch.context_lens[seq] for seq in seqs])[:, None]
        counts = self._longs(visible)[:, None]
        places = torch.arange(max(visible), device=ends.device)
        positions = torch.minimum(ends - counts + places, ends - 1)
        mask = None
        if min(visible) < max(visible):
            mask = _hide(places >= counts, self.plans.dtype)[:, None, None, :]
        return DecodeBucket(
            rows=self._longs([self.batch.query_starts[seq] for seq in seqs]),
            slots=self._slots(self._longs(seqs)[:, None], positions).flatten(),
            mask=mask,
        )

    def chunk(self, seq: int) -> TiledChunk:
        start, end = self.batch.query_starts[seq : seq + 2]
        length = self.batch.context_lens[seq]
        first, begin = length - (end - start), length - self.num_visible(seq)
        slots = None
        if first > 0:
            positions = torch.arange(begin, length, device=self.batch.positions.device)
            slots = self._slots(seq, positions)
        elif self.plans.reads_back:
            slots = self.batch.slots[self.table][start:end]
        row = start - first
        tiles = (
            QueryTile(slice(row + low, row + high), slice(seen - begin, high - begin), mask)
            for low, high in self._cuts(first, length)
            for seen, mask in [self._sees(low, high)]
        )
        return TiledChunk(slice(start, end), slots, tuple(tiles))

    def _cuts(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the positions `first` to `end` in tiles, none across the edge of a local chunk."""
        pattern = self.pattern
        while first < end:
            last = end
            if pattern.attention_type is AttentionType.CHUNKED and pattern.size is not None:
                last = min(end, (first // pattern.size + 1) * pattern.size)
            if self.is_plain or not self._is_square(first, last):
                last = min(last, first + QUERY_TILE)
            yield first, last
            first = last

    def _sees(self, first: int, last: int) -> tuple[int, Tensor | None]:
        """Return the first position that a tile's queries see, and their mask."""
        begin = self.pattern.first_needed(first)
        if not self.is_plain and self._is_square(first, last):
            return begin, None
        return begin, self.plans.triangle(self.pattern)[first - last :, begin - last :]

    def _is_square(self, first: int, last: int) -> bool:
        """Return whether these queries see one another alone, each up to its own position."""
        return self.pattern.first_needed(first) == first >= self.pattern.first_needed(last - 1)

    def _slots(self, seqs: Tensor | int, positions: Tensor) -> Tensor:
        table = self.batch.block_tables[self.table]
        blocks = table[seqs, positions // self.plans.block_size].long()
        return blocks * self.plans.block_size + positions % self.plans.block_size

    def _longs(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self.batch.positions.device)


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, float("-inf"))
