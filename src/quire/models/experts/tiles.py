"""The sizes of the tiles of grouped products: a function of the dtype, of how many pairs there are
for each expert, and of the device, so that nothing is tuned while requests wait.
"""

from typing import NamedTuple

import torch

from quire.models.attention.triton.tiles import DeviceProperties

MIN_ROWS = 16
"""The minimum tile size of a tensor core."""


class ProductTile(NamedTuple):
    """`rows`: pairs of one expert. `columns`: of one weight; where gate and up are multiplied
    together, of each. `depth`: the numbers that a product adds up at once."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int

    def num_row_tiles(self, num_pairs: int, num_experts: int) -> int:
        """Return how many tiles of rows suffice, however the pairs are spread over the experts.

        Each expert that is hit has at most one tile that is not full, with one pair at least.
        """
        hit = min(num_pairs, num_experts)
        return (num_pairs - hit) // self.rows + hit


INTERPRETED = ProductTile(rows=32, columns=128, depth=64, num_warps=1, num_stages=1)
"""An interpreter takes as long for any tile, and so the fewer the better."""


def choose_product_tile(
    dtype: torch.dtype,
    num_pairs: int,
    num_experts: int,
    device: DeviceProperties,
    *,
    is_gated: bool,
) -> ProductTile:
    """Return the tile for `num_pairs` pairs of a token and an expert.

    Where experts have few pairs each, reading weights is all that matters: tiles have the fewest
    rows, so that many programs share a multiprocessor and wait for memory in turn. Otherwise they
    have many, and a weight is read seldom. There are no more than these two, so that both have been
    compiled when a largest step and a step of one token have run. `depth` does not depend on the
    pairs: a row's products are added up in the same order in any company.
    """
    if device.is_interpreted:
        return INTERPRETED
    is_few = num_pairs <= MIN_ROWS * num_experts
    if dtype.itemsize > 2:
        return _exact_tile(is_few=is_few, is_gated=is_gated)
    if is_few:
        return ProductTile(MIN_ROWS, 32 if is_gated else 64, 64, 4, 4)
    return ProductTile(128, 64 if is_gated else 128, 64, 8, 3)


def _exact_tile(*, is_few: bool, is_gated: bool) -> ProductTile:
    """Return a tile without tensor cores, which are not exact: small, or registers spill."""
    columns = 32 if is_gated else 64
    if is_few:
        return ProductTile(MIN_ROWS, columns, 16, 4, 3)
    return ProductTile(64, columns, 16, 4 if is_gated else 8, 3)
