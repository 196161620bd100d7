"""A few rows of logits in fp32, cut in tiles of neighbouring ids, and what is found by looking at
few of the tiles.

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


class Slab(NamedTuple):
    """Some rows of logits with the largest of each tile and of each row; the last tile is filled
    up with -inf.

    A row's peak is finite unless the row holds NaN or +inf, or nothing but -inf.
    """

    logits: Tensor
    maxima: Tensor
    peaks: Tensor

    def select(self, places: Tensor) -> "Slab":
        return Slab(self.logits[places], self.maxima[places], self.peaks[places])


class Workspace:
    """Memory for one slab at a time, kept so that no step pays for fresh pages."""

    def __init__(self, vocab_size: int, device: torch.device, max_rows: int = _MAX_ROWS) -> None:
        num_tiles = -(-vocab_size // TILE)
        num_logits = _NUM_SLAB_LOGITS.get(device.type, 1 << 22)
        self.vocab_size = vocab_size
        self.max_rows = min(max_rows, max(num_logits // (num_tiles * TILE), 1))
        shape = (self.max_rows, num_tiles, TILE)
        self._logits = torch.empty(shape, device=device)
        self._logits.flatten(1)[:, vocab_size:] = -torch.inf
        self.floats = torch.empty(shape, device=device)
        self.ticks = torch.empty(shape, dtype=torch.int32, device=device)

    def load(self, logits: Tensor, places: Sequence[int]) -> Tensor:
        """Copy in the rows of `logits` at rising `places`, at most max_rows, and return them
        [rows, vocab_size] to be edited."""
        loaded = self._logits[: len(places)].flatten(1)[:, : self.vocab_size]
        first, end = places[0], places[-1] + 1
        if end - first == len(places):
            return loaded.copy_(logits[first:end])
        return loaded.copy_(logits.index_select(0, torch.tensor(places, device=logits.device)))

    def slab(self, num_rows: int) -> Slab:
        """The rows last loaded, as edited."""
        logits = self._logits[:num_rows]
        maxima = logits.amax(-1)
        return Slab(logits, maxima, maxima.amax(-1, keepdim=True))


def likeliest(slab: Slab) -> Tensor:
    """The id of each row's peak, the lowest of equals: the first lane of the first tile."""
    tiles = slab.maxima.argmax(-1)
    rows = torch.arange(len(tiles), device=tiles.device)
    return tiles * TILE + slab.logits[rows, tiles].argmax(-1)


def least_of_top(slab: Slab, ranks: Tensor) -> Tensor:
    """A threshold [rows, 1] that at least `ranks` [rows, 1] tokens reach and not many more: the
    maximum of so many tiles where there are enough, else the logit of that rank."""
    everything = ranks >= slab.logits[0].numel()
    ranks = ranks.masked_fill(everything, 1)
    largest = int(ranks.max())
    source = slab.maxima if largest <= slab.maxima.shape[1] * 3 // 4 else slab.logits.flatten(1)
    least = source.topk(largest).values.gather(1, ranks - 1)
    return least.masked_fill_(everything, -torch.inf)


class Candidates(NamedTuple):
    """Some tokens of each row, [rows, most], by rising id, filled up with (0, -inf)."""

    ids: Tensor
    logits: Tensor

    def ranked(self) -> Tensor:
        """For each row its places by falling logit, equal ones by rising id."""
        bits = (0.0 - self.logits).view(torch.int32)  # 0.0 - x makes the two zeros one
        rising = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
        places = torch.arange(bits.shape[1], device=bits.device)
        return ((rising << 32) | places).sort().values & 0xFFFFFFFF


def candidates(slab: Slab, threshold: Tensor) -> Candidates:
    """The tokens with logits of at least `threshold` [rows, 1]; only their tiles are looked at."""
    row_of_tile, tiles = (slab.maxima >= threshold).nonzero().unbind(1)
    lanes = slab.logits[row_of_tile, tiles]
    places, lane_ids = (lanes >= threshold[row_of_tile]).nonzero().unbind(1)
    rows, ids = row_of_tile[places], tiles[places] * TILE + lane_ids
    return gather_candidates(slab, rows, ids)


def gather_candidates(slab: Slab, rows: Tensor, ids: Tensor) -> Candidates:
    """The tokens `ids` of `rows`, listed by row and then by id."""
    counts = rows.bincount(minlength=len(slab.logits))
    columns = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (len(counts), max(int(counts.max()), 1))
    found = Candidates(ids.new_zeros(shape), slab.peaks.new_full(shape, -torch.inf))
    found.ids[rows, columns] = ids
    found.logits[rows, columns] = slab.logits.flatten(1)[rows, ids]
    return found
