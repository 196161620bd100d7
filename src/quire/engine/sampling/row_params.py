"""The sampling parameters of a row as numbers."""

from math import inf, log

from quire.engine.sampling.noise import uniform
from quire.engine.sampling.sampling_state import SamplingState

NUM_PARAMS = 5
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-20, 1e20
_GREEDY = (0.0, 0.0, 0.0, 1.0, -inf)


def pack_params(row: SamplingState, vocab_size: int) -> tuple[float, float, float, float, float]:
    """Return the noise, temperature, top_k, top_p and logarithm of min_p of a row.

    A parameter that is off gets a value that keeps every token. A greedy row has a temperature of
    0, and its other parameters are not used.
    """
    params = row.sampling
    if params.temperature == 0:
        return _GREEDY
    return (
        uniform(params.seed, row.position),
        min(max(params.temperature, _MIN_TEMPERATURE), _MAX_TEMPERATURE),
        min(params.top_k or vocab_size, vocab_size),
        params.top_p,
        log(params.min_p) if params.min_p > 0 else -inf,
    )
