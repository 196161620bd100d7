"""What a row asks of its draw, as numbers."""

from math import inf, log

from quire.engine.sampling.noise import uniform
from quire.engine.sampling.sampling_state import SamplingState

NUM_PARAMS = 5
_COLDEST, _HOTTEST = 1e-20, 1e20
_GREEDY = (0.0, 0.0, 0.0, 1.0, -inf)


def pack_params(row: SamplingState, vocab_size: int) -> tuple[float, float, float, float, float]:
    """Its noise, temperature, top_k, top_p and the logarithm of min_p. Off values become ones that
    keep everything; a row that is greedy has a temperature of 0, and the rest is not looked at."""
    params = row.sampling
    if params.temperature == 0:
        return _GREEDY
    return (
        uniform(params.seed, row.position),
        min(max(params.temperature, _COLDEST), _HOTTEST),
        min(params.top_k or vocab_size, vocab_size),
        params.top_p,
        log(params.min_p) if params.min_p > 0 else -inf,
    )
