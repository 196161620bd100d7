"""A few rows of logits in fp32, cut in tiles of neighbouring ids, and what is found by looking at
few of the tiles. No shape depends on what the logits are, so that nobody waits for a device.

logits [rows, tiles, TILE] -> maxima [rows, tiles] -> peaks [rows, 1]
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 128
_NUM_SLAB_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 22}
"""Logits worked on at once: few enough to stay in a CPU's cache, enough to fill a GPU."""
_MAX_ROWS = 256
_KEPT_BYTES, _DRAW_BYTES, _ROW_BYTES = 28, 56, 1 << 16
"""For each logit worked on at once: kept, and at most while a draw runs; and for each row: the
buckets of a nucleus, some of them thrice."""


def working_bytes(vocab_size: int, device: torch.device) -> int:
    """Of a `Workspace` and of the draws in it, from above."""
    num_tiles = -(-vocab_size // TILE)
    row_bytes = num_tiles * TILE * (_KEPT_BYTES + _DRAW_BYTES) + _ROW_BYTES
    return _slab_rows(num_tiles, device) * row_bytes


def _slab_rows(num_tiles: int, device: torch.device) -> int:
    num_logits = _NUM_SLAB_LOGITS.get(device.type, _NUM_SLAB_LOGITS["cuda"])
    return min(_MAX_ROWS, max(num_logits // (num_tiles * TILE), 1))


class Slab(NamedTuple):
    """Some rows of logits with the largest of each tile and of each row; the last tile is filled
    up with -inf.

    A row's peak is finite unless the row holds NaN or +inf, or nothing but -inf.
    """

    logits: Tensor
    maxima: Tensor
    peaks: Tensor


class Workspace:
    """Memory for one slab at a time, kept so that no step pays for fresh pages. While a draw runs
    it takes up to 10 bytes more for each logit; with a top_k of as many tokens as there are tiles
    16, of the whole vocabulary 55.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        num_tiles = -(-vocab_size // TILE)
        self.vocab_size = vocab_size
        self.max_rows = _slab_rows(num_tiles, device)
        shape = (self.max_rows, num_tiles, TILE)
        self._logits = torch.empty(shape, device=device)
        self._logits.flatten(1)[:, vocab_size:] = -torch.inf
        self.floats = torch.empty(shape, device=device)
        self.ints = torch.empty(shape, dtype=torch.int32, device=device)
        self.longs = torch.empty(shape, dtype=torch.int64, device=device)
        self.doubles = torch.empty(shape, dtype=torch.float64, device=device)

    def load(self, logits: Tensor, places: Sequence[int], index: Tensor) -> Tensor:
        """Copy in the rows of `logits` at `places`, at most max_rows, which are `index` on the
        device, and return them [rows, vocab_size] to be edited."""
        loaded = self._logits[: len(places)].flatten(1)[:, : self.vocab_size]
        first, end = places[0], places[-1] + 1
        if end - first == len(places):  # places rise
            return loaded.copy_(logits[first:end])
        return loaded.copy_(logits.index_select(0, index))

    def slab(self, num_rows: int) -> Slab:
        """The rows last loaded, as edited."""
        logits = self._logits[:num_rows]
        maxima = logits.amax(-1)
        return Slab(logits, maxima, maxima.amax(-1, keepdim=True))


def peak_ids(slab: Slab) -> Tensor:
    """The id of each row's peak, the lowest of equals: the first lane of the first tile."""
    tiles = slab.maxima.argmax(-1)
    return tiles * TILE + lanes_of(slab.logits, tiles).argmax(-1)


def lanes_of(tokens: Tensor, tiles: Tensor) -> Tensor:
    """Of some [rows, tiles, TILE] one tile [TILE] of each row, or some [any, TILE] of each."""
    rows = torch.arange(len(tiles), device=tiles.device)
    return tokens[rows.view(-1, *(1,) * (tiles.dim() - 1)), tiles]


class Tokens(NamedTuple):
    """Some tokens of each row, [rows, any]."""

    ids: Tensor
    logits: Tensor


def top_tokens(slab: Slab, count: int) -> Tokens:
    """The `count` likeliest of each row, in order of falling logit and rising id. The tiles of the
    so many largest maxima, in that same order, hold them all: each tile left out has so many tokens
    before its own. Ids of a row that is not finite may lie in the fill."""
    if count > slab.maxima.shape[1] * 3 // 4:
        logits = slab.logits.flatten(1)
        ids = _ranked(logits, count)
        return Tokens(ids, logits.gather(1, ids))
    tiles = _ranked(slab.maxima, count).sort().values
    lanes = lanes_of(slab.logits, tiles).flatten(1)
    places = _ranked(lanes, count)
    ids = tiles.gather(1, places // TILE) * TILE + places % TILE
    return Tokens(ids, lanes.gather(1, places))


def _ranked(logits: Tensor, count: int) -> Tensor:
    """The places of the `count` largest of each row, falling, equal ones by rising place."""
    places = torch.arange(logits.shape[1], device=logits.device)
    items = (_ranks_of(logits).long() << 32) | places
    return items.topk(count, largest=False).values & 0xFFFFFFFF


def rank_all(slab: Slab, space: Workspace) -> Tensor:
    """The ranks of all tokens, int32 [rows, tiles, TILE]: larger logits, smaller ranks; the two
    zeros are one. Of NaN: anything. They lie in `space.ints`; `space.floats` is overwritten."""
    num_rows = len(slab.logits)
    bits = torch.neg(slab.logits, out=space.floats[:num_rows]).add_(0.0).view(torch.int32)
    return _flipped(bits, space.ints[:num_rows])


def logits_of_rank(ranks: Tensor) -> Tensor:
    return 0.0 - _flipped(ranks, torch.empty_like(ranks)).view(torch.float32)


def _ranks_of(logits: Tensor) -> Tensor:
    bits = (0.0 - logits).view(torch.int32)
    return _flipped(bits, torch.empty_like(bits))


def _flipped(bits: Tensor, out: Tensor) -> Tensor:
    """Between the bits of floats and integers in the same order; it is its own inverse."""
    flips = torch.bitwise_right_shift(bits, 31, out=out)
    return flips.bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)
