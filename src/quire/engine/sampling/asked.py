"""What a row asks of its draw, as numbers."""

from math import inf, log

from quire.engine.sampling.noise import uniform
from quire.engine.sampling.sample_row import SampleRow

NUM_NUMBERS = 5
_COLDEST, _HOTTEST = 1e-20, 1e20
_GREEDY = (0.0, 0.0, 0.0, 1.0, -inf)


def numbers_of(row: SampleRow, vocab_size: int) -> tuple[float, float, float, float, float]:
    """Its noise, temperature, top_k, top_p and the logarithm of min_p. Off values become ones that
    keep everything; a row that is greedy has a temperature of 0, and the rest is not looked at."""
    asked = row.sampling
    if asked.temperature == 0:
        return _GREEDY
    return (
        uniform(asked.seed, row.position),
        min(max(asked.temperature, _COLDEST), _HOTTEST),
        min(asked.top_k or vocab_size, vocab_size),
        asked.top_p,
        log(asked.min_p) if asked.min_p > 0 else -inf,
    )
