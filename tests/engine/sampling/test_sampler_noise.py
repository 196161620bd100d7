"""The noise: a pure function of seed and position, uniform along either."""

from hypothesis import given
from hypothesis import strategies as st

from quire.engine.sampling.noise import splitmix64, uniform

SEEDS = st.integers(-(2**63), 2**64 - 1)


def test_streams_are_those_of_splitmix64() -> None:
    """The first outputs for seed 1234567 as the reference implementation prints them."""
    assert [splitmix64(1234567, position) for position in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(SEEDS, st.integers(0, 2**31))
def test_noise_is_a_pure_function_below_one(seed: int, position: int) -> None:
    noise = uniform(seed, position)
    assert 0 <= noise < 1
    assert noise == uniform(seed, position) == uniform(seed + 2**64, position)


def test_noise_is_uniform_over_positions_and_over_seeds() -> None:
    """Kolmogorov-Smirnov at a bound that one true sample in ten thousand would pass."""
    num = 20_000
    streams = (
        [uniform(0, position) for position in range(num)],
        [uniform(2**64 - 1, position) for position in range(num)],
        [uniform(seed, 100) for seed in range(num)],
        [uniform(seed << 32, seed) for seed in range(num)],
    )
    for stream in streams:
        distance = max(abs(value - i / num) for i, value in enumerate(sorted(stream)))
        assert distance < 2.23 / num**0.5


def test_near_seeds_and_positions_are_independent() -> None:
    """Chi-square over 16 x 16 cells of pairs."""
    num = 20_000
    pairs = (
        [(uniform(seed, 5), uniform(seed + 1, 5)) for seed in range(num)],
        [(uniform(5, position), uniform(5, position + 1)) for position in range(num)],
        [(uniform(seed, 5), uniform(seed, 6)) for seed in range(num)],
    )
    for each in pairs:
        counts = [0] * 256
        for first, second in each:
            counts[int(first * 16) * 16 + int(second * 16)] += 1
        statistic = sum((count - num / 256) ** 2 / (num / 256) for count in counts)
        assert statistic < 255 + 5 * (2 * 255) ** 0.5
