"""The constants that the sampling kernel is compiled for: they follow from the vocabulary."""

import math

from triton import next_power_of_2

from quire.engine.sampling.tiles import TILE
from quire.engine.sampling.weights import unit_of_tiles

NUM_WARPS = 16
"""The number of warps of a program, which samples one row: enough to keep a multiprocessor reading.
"""
BLOCK = 4096
"""Logits that are read at once."""
LANES = 1024
"""The same where a search weighs them up to several pivots, which fills the registers."""
BLOCK_TILES = 16


def num_lanes(vocab_size: int) -> int:
    """Return the number of lanes of a search, each with its own list of tokens."""
    return int(min(LANES, next_power_of_2(vocab_size)))


def sample_constants(vocab_size: int) -> dict[str, object]:
    """Return those of `sample`. Tokens that lie more than SPREAD temperatures below the most likely
    one weigh nothing."""
    num_tiles = -(-vocab_size // TILE)
    unit = unit_of_tiles(num_tiles)
    return {
        "VOCAB": vocab_size,
        "BLOCK": min(BLOCK, next_power_of_2(vocab_size)),
        "LANES": num_lanes(vocab_size),
        "TILES": min(BLOCK_TILES, next_power_of_2(num_tiles)),
        "UNIT": unit,
        "SPREAD": math.log(unit) + 1.0,
    }
