"""The random number of one sampled token: a pure function of (seed, position), so that a request
gets the same tokens in any batch and on any schedule. A counter-based SplitMix64 (Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Vigna's
public-domain splitmix64.c), in exact Python integers.
"""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits. The seed is mixed first, so that near seeds
    share no stream.
    """
    bits = splitmix64(splitmix64(seed, 0), position)
    return (bits >> 11) * 2.0**-53


def splitmix64(seed: int, position: int) -> int:
    """Return output `position` of the SplitMix64 stream of `seed`, both taken modulo 2**64."""
    z = (seed + (position + 1) * _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
