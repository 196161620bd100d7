"""A slab: a few rows of logits in fp32, cut in tiles of TILE neighbouring ids, so that much is
found by looking at few tiles. No shape depends on the values of logits, so that the host never
waits for the device.

logits [rows, tiles, TILE] -> maxima [rows, tiles] -> peaks [rows, 1]
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 128
_NUM_SLAB_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 22}
"""The logits of one slab: few enough to stay in a CPU's cache, enough to occupy a GPU."""
_MAX_ROWS = 256
_KEPT_BYTES, _DRAW_BYTES, _ROW_BYTES = 28, 56, 1 << 16
"""Bytes for each logit of a slab that are kept, and those at most while tokens are sampled; and
bytes for each row: the buckets of top_p, some of them three times."""


def working_bytes(vocab_size: int, device: torch.device) -> int:
    """Return an upper bound of the bytes of a `SamplingWorkspace` and of sampling in it."""
    num_tiles = -(-vocab_size // TILE)
    row_bytes = num_tiles * TILE * (_KEPT_BYTES + _DRAW_BYTES) + _ROW_BYTES
    return slab_rows(vocab_size, device) * row_bytes


def slab_rows(vocab_size: int, device: torch.device) -> int:
    """Return the most rows of a slab."""
    num_tiles = -(-vocab_size // TILE)
    num_logits = _NUM_SLAB_LOGITS.get(device.type, _NUM_SLAB_LOGITS["cuda"])
    return min(_MAX_ROWS, max(num_logits // (num_tiles * TILE), 1))


class Slab(NamedTuple):
    """Some rows of logits with the maxima of tiles and of rows.

    logits: float32 [rows, tiles, TILE]; the last tile is padded with -inf.
    maxima: float32 [rows, tiles].
    peaks: float32 [rows, 1]; finite unless the row holds NaN or +inf, or nothing but -inf.
    """

    logits: Tensor
    maxima: Tensor
    peaks: Tensor


class SamplingWorkspace:
    """Memory for one slab at a time, kept so that no step pays for page faults. While tokens are
    sampled it takes up to 10 bytes more for each logit; with a top_k of as many tokens as there are
    tiles 16, with one of the whole vocabulary 55.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        num_tiles = -(-vocab_size // TILE)
        self.vocab_size = vocab_size
        self.max_rows = slab_rows(vocab_size, device)
        shape = (self.max_rows, num_tiles, TILE)
        self._logits = torch.empty(shape, device=device)
        self._logits.flatten(1)[:, vocab_size:] = -torch.inf
        self.floats = torch.empty(shape, device=device)
        self.ints = torch.empty(shape, dtype=torch.int32, device=device)
        self.longs = torch.empty(shape, dtype=torch.int64, device=device)
        self.doubles = torch.empty(shape, dtype=torch.float64, device=device)

    def load(self, logits: Tensor, row_indices: Sequence[int], index: Tensor) -> Tensor:
        """Copy in the rows of `logits` at `row_indices`, at most max_rows (the same on the device:
        `index`), and return them, [rows, vocab_size], for logits processors to change."""
        loaded = self._logits[: len(row_indices)].flatten(1)[:, : self.vocab_size]
        first, end = row_indices[0], row_indices[-1] + 1
        if end - first == len(row_indices):  # they rise
            return loaded.copy_(logits[first:end])
        return loaded.copy_(logits.index_select(0, index))

    def slab(self, num_rows: int) -> Slab:
        """Return the rows that were loaded last, as they are now, with their maxima."""
        logits = self._logits[:num_rows]
        maxima = logits.amax(-1)
        return Slab(logits, maxima, maxima.amax(-1, keepdim=True))


def peak_ids(slab: Slab) -> Tensor:
    """Return the argmax of each row, int64 [rows], the lowest id of equal ones."""
    tiles = slab.maxima.argmax(-1)
    return tiles * TILE + lanes_of(slab.logits, tiles).argmax(-1)


def lanes_of(tokens: Tensor, tiles: Tensor) -> Tensor:
    """Return tiles of each row of `tokens` [rows, tiles, TILE]: [rows, TILE] for `tiles` [rows], or
    [rows, any, TILE] for `tiles` [rows, any]."""
    rows = torch.arange(len(tiles), device=tiles.device)
    return tokens[rows.view(-1, *(1,) * (tiles.dim() - 1)), tiles]


class Tokens(NamedTuple):
    """Some tokens of each row: `ids` int64 and `logits` float32, [rows, any]."""

    ids: Tensor
    logits: Tensor


def top_tokens(slab: Slab, count: int) -> Tokens:
    """Return the `count` most likely tokens of each row, by falling logit and then rising id.

    The `count` tiles of the largest maxima, in that same order, hold them all: at least `count`
    tokens come before those of any other tile. Ids of a row that is not finite may lie in the
    padding.
    """
    if count > slab.maxima.shape[1] * 3 // 4:
        logits = slab.logits.flatten(1)
        ids = _ranked(logits, count)
        return Tokens(ids, logits.gather(1, ids))
    tiles = _ranked(slab.maxima, count).sort().values
    lanes = lanes_of(slab.logits, tiles).flatten(1)
    indices = _ranked(lanes, count)
    ids = tiles.gather(1, indices // TILE) * TILE + indices % TILE
    return Tokens(ids, lanes.gather(1, indices))


def _ranked(logits: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest of each row, by falling logit and rising index."""
    indices = torch.arange(logits.shape[1], device=logits.device)
    items = (_ranks_of(logits).long() << 32) | indices
    return items.topk(count, largest=False).values & 0xFFFFFFFF


def rank_all(slab: Slab, space: SamplingWorkspace) -> Tensor:
    """Return the ranks of all tokens, int32 [rows, tiles, TILE]: larger logits have smaller ranks.

    Both zeros have one rank; those of NaN are undefined. The result lies in `space.ints`;
    `space.floats` is overwritten.
    """
    num_rows = len(slab.logits)
    bits = torch.neg(slab.logits, out=space.floats[:num_rows]).add_(0.0).view(torch.int32)
    return _flipped(bits, space.ints[:num_rows])


def logits_of_rank(ranks: Tensor) -> Tensor:
    """Return the float32 logits that have these ranks."""
    return 0.0 - _flipped(ranks, torch.empty_like(ranks)).view(torch.float32)


def _ranks_of(logits: Tensor) -> Tensor:
    bits = (0.0 - logits).view(torch.int32)
    return _flipped(bits, torch.empty_like(bits))


def _flipped(bits: Tensor, out: Tensor) -> Tensor:
    """Map the bits of floats to integers of the same order, and back: it is its own inverse."""
    flips = torch.bitwise_right_shift(bits, 31, out=out)
    return flips.bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)
