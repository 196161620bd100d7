"""Where the reference backend gathers from and what it masks: worked out once per step and window.

No index ever points past a sequence's own context: padding repeats its last slot, so that nothing
another request left in memory, not even a NaN, can reach this one's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.batch import Batch

MAX_PADDING = 2
"""A bucket gathers at most this many times the tokens that its sequences can see."""
MAX_BUCKET_TOKENS = {"cpu": 4096, "cuda": 32768}
"""And at most this many in all, unless a single sequence is longer: what a CPU's cache holds, and
for a GPU a bound on memory."""
QUERY_TILE = 256
"""Queries of a chunk that share one mask, and so the most rows a mask can have."""


@dataclass(frozen=True, slots=True)
class DecodeBucket:
    """One-token chunks: `rows` [S] of the batch, each seeing up to L of the `slots` [S * L]."""

    rows: Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries `rows` of the batch see `keys` of the chunk by `mask`; without one, to their own."""

    rows: slice
    keys: slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """`slots` None: nothing came before, and the step's own K and V of `rows` are the keys."""

    rows: slice
    slots: Tensor | None
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    buckets: tuple[DecodeBucket, ...]
    chunks: tuple[Chunk, ...]
    is_one_bucket: bool
    """The whole batch, in its order: rows need no picking apart."""


def build_plan(
    batch: Batch, block_size: int, *, group: int, window: int | None, dtype: torch.dtype
) -> Plan:
    planner = _Planner(batch, batch.block_tables[group], block_size, window, dtype)
    starts = batch.query_starts
    sizes = [end - start for start, end in zip(starts, starts[1:], strict=False)]
    singles = [seq for seq, size in enumerate(sizes) if size == 1]
    seen = [planner.num_visible(seq) for seq in range(len(sizes))]
    max_tokens = MAX_BUCKET_TOKENS.get(batch.positions.device.type, MAX_BUCKET_TOKENS["cuda"])
    groups = group_by_length(singles, seen, max_tokens)
    buckets = tuple(planner.bucket(group) for group in groups)
    longer = [seq for seq, size in enumerate(sizes) if size > 1]
    triangle = planner.triangle(max((seen[seq] for seq in longer), default=0))
    chunks = tuple(planner.chunk(seq, triangle) for seq in longer)
    return Plan(buckets, chunks, is_one_bucket=not chunks and len(buckets) == 1)


def group_by_length(
    seqs: Sequence[int], lengths: Sequence[int], max_tokens: int
) -> list[list[int]]:
    """Groups whose members are close enough in length to be padded to the longest."""
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
    batch: Batch
    tables: Tensor
    block_size: int
    window: int | None
    dtype: torch.dtype

    def num_visible(self, seq: int) -> int:
        """How many positions the queries of `seq` can see between them: the last ones."""
        length = self.batch.context_lens[seq]
        if self.window is None:
            return length
        num_new = self.batch.query_starts[seq + 1] - self.batch.query_starts[seq]
        return min(length, self.window + num_new - 1)

    def bucket(self, seqs: Sequence[int]) -> DecodeBucket:
        ends = self._longs([self.batch.context_lens[seq] for seq in seqs])[:, None]
        visible = [self.num_visible(seq) for seq in seqs]
        counts = self._longs(visible)[:, None]
        places = torch.arange(max(visible), device=ends.device)
        positions = torch.minimum(ends - counts + places, ends - 1)
        mask = None
        if min(visible) < max(visible):
            mask = _hide(places >= counts, self.dtype)[:, None, None, :]
        return DecodeBucket(
            rows=self._longs([self.batch.query_starts[seq] for seq in seqs]),
            slots=self._slots(self.tables[self._longs(seqs)], positions).flatten(),
            mask=mask,
        )

    def chunk(self, seq: int, triangle: Tensor) -> Chunk:
        start, end = self.batch.query_starts[seq : seq + 2]
        length, num_visible = self.batch.context_lens[seq], self.num_visible(seq)
        rows, num_new = slice(start, end), end - start
        if length == num_new and (self.window is None or self.window >= num_new):
            return Chunk(rows, None, (Tile(rows, slice(0, num_new), None),))
        slots = None
        if length > num_new:
            positions = torch.arange(length - num_visible, length, device=triangle.device)
            slots = self._slots(self.tables[seq][None], positions[None])[0]
        return Chunk(rows, slots, self._tiles(rows, num_visible, triangle))

    def triangle(self, num_keys: int) -> Tensor:
        """The mask [QUERY_TILE, num_keys] of queries that are the last of the keys.

        Whether a query sees a key depends on their distance alone, so the lower right part of this
        one is the mask of every smaller tile.
        """
        queries = torch.arange(QUERY_TILE, device=self.batch.positions.device)[:, None]
        keys = torch.arange(num_keys, device=queries.device) - num_keys + QUERY_TILE
        hidden = keys > queries
        if self.window is not None:
            hidden |= keys <= queries - self.window
        return _hide(hidden, self.dtype)

    def _tiles(self, rows: slice, num_keys: int, triangle: Tensor) -> tuple[Tile, ...]:
        """Cut the chunk's queries; each cut sees the keys up to its last query, less the window."""
        tiles = []
        for first in range(rows.start, rows.stop, QUERY_TILE):
            last = min(first + QUERY_TILE, rows.stop)
            end = num_keys - (rows.stop - last)
            begin = 0 if self.window is None else max(0, end - (last - first) - self.window + 1)
            mask = triangle[first - last :, begin - end :]
            tiles.append(Tile(slice(first, last), slice(begin, end), mask))
        return tuple(tiles)

    def _slots(self, tables: Tensor, positions: Tensor) -> Tensor:
        blocks = tables.long().gather(1, positions // self.block_size)
        return blocks * self.block_size + positions % self.block_size

    def _longs(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self.batch.positions.device)


def _hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill_(hidden, float("-inf"))
