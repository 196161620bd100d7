"""What takes how much, and back: every answer fits, and one more does not."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.footprint import (
    BATCH_SHARE,
    Bound,
    Bounds,
    Footprint,
    Solution,
    solve_blocks,
    solve_both,
    solve_tokens,
)
from quire.cache.sizing import TooLittleMemory

footprints = st.builds(
    Footprint,
    block_size=st.sampled_from([8, 16, 256]),
    block_bytes=st.integers(1, 1 << 26),
    token_bytes=st.integers(1, 1 << 22),
    pair_bytes=st.sampled_from([0, 0, 1, 2, 8]),
    fixed_bytes=st.integers(0, 1 << 32),
)
spare = st.integers(0, 1 << 40)
shares = st.fractions(Fraction(1, 1000), Fraction(1, 2), max_denominator=1000)


def fits(footprint: Footprint, available: int, num_blocks: int, num_tokens: int) -> bool:
    return footprint.num_bytes(num_blocks, num_tokens) <= available


def test_the_terms_of_a_footprint_by_hand() -> None:
    footprint = Footprint(16, block_bytes=1000, token_bytes=100, pair_bytes=2, fixed_bytes=7)
    kv, work, masks = 3 * 1000, 5 * 100, 5 * (3 * 16 + 5) * 2
    assert footprint.num_bytes(3, 5) == kv + work + masks + 7


@given(footprints, spare, shares)
def test_both_unknown_fit_and_one_more_of_either_does_not(
    footprint: Footprint, more: int, share: Fraction
) -> None:
    available = footprint.num_bytes(0, 1) + more
    found = solve_both(footprint, available, share=share)
    blocks, tokens = found.num_blocks, found.num_tokens
    assert found.num_bytes == footprint.num_bytes(blocks, tokens) <= available
    assert not fits(footprint, available, blocks + 1, tokens)
    assert not fits(footprint, available, blocks, tokens + 1)
    assert found.bound_by == ()


@given(st.integers(1000, 100_000), st.integers(1000, 1 << 20), shares)
def test_tokens_are_the_asked_share_of_kv_memory(
    num_blocks: int, block_bytes: int, share: Fraction
) -> None:
    """But for what rounding left over: less than the tokens that belong to one block, a token, and
    a block; tokens are as large as the smallest blocks here."""
    footprint = Footprint(16, block_bytes, token_bytes=1000)
    available = footprint.num_bytes(num_blocks, int(share * num_blocks * 16))
    found = solve_both(footprint, available, share=share)
    wanted = share * found.num_blocks * 16
    block_share = 16 * share
    assert (
        wanted - block_share * (block_share + 3) - 1
        <= found.num_tokens
        <= wanted + block_bytes // 1000 + 1
    )


@given(footprints, spare, st.integers(1, 4096))
def test_blocks_beside_given_tokens(footprint: Footprint, more: int, num_tokens: int) -> None:
    available = footprint.num_bytes(0, num_tokens) + more
    found = solve_blocks(footprint, available, num_tokens=num_tokens)
    assert fits(footprint, available, found.num_blocks, num_tokens)
    assert not fits(footprint, available, found.num_blocks + 1, num_tokens)


@given(footprints, spare, st.integers(0, 100_000))
def test_tokens_beside_given_blocks(footprint: Footprint, more: int, num_blocks: int) -> None:
    available = footprint.num_bytes(num_blocks, 0) + more
    found = solve_tokens(footprint, available, num_blocks=num_blocks)
    assert fits(footprint, available, num_blocks, found.num_tokens)
    assert not fits(footprint, available, num_blocks, found.num_tokens + 1)


@given(footprints, spare)
def test_the_partial_modes_agree_with_the_footprint_and_each_other(
    footprint: Footprint, more: int
) -> None:
    """Defect B of FEATURES 1F: formulas that differed from the footprint by a term."""
    available = footprint.num_bytes(0, 1) + more
    both = solve_both(footprint, available)
    by_tokens = solve_blocks(footprint, available, num_tokens=both.num_tokens)
    by_blocks = solve_tokens(footprint, available, num_blocks=both.num_blocks)
    assert by_tokens.num_blocks == both.num_blocks
    assert by_blocks.num_tokens == both.num_tokens
    assert by_tokens.num_bytes == by_blocks.num_bytes == both.num_bytes


def test_a_large_device_is_not_throttled_in_silence() -> None:
    """Defect B of FEATURES 1F: hidden bounds of 256 tokens and 4096 blocks."""
    footprint = Footprint(16, block_bytes=1 << 21, token_bytes=1 << 20)
    found = solve_both(footprint, 640 << 30)
    assert found.num_blocks > 100_000 and found.num_tokens > 10_000
    assert found.bound_by == ()
    bounded = solve_both(footprint, 640 << 30, bounds=Bounds(1, 4096, 256))
    assert (bounded.num_blocks, bounded.num_tokens) == (4096, 256)
    assert bounded.bound_by == (Bound.BLOCKS, Bound.TOKENS)
    assert bounded.free_blocks > 100_000 and bounded.free_tokens > 10_000


@given(
    footprints,
    spare,
    st.integers(1, 64),
    st.none() | st.integers(1, 5000),
    st.none() | st.integers(64, 5000),
)
def test_bounds_hold_and_are_said_where_they_bind(
    footprint: Footprint,
    more: int,
    least_tokens: int,
    max_blocks: int | None,
    max_tokens: int | None,
) -> None:
    available = footprint.num_bytes(0, least_tokens) + more
    found = solve_both(footprint, available, bounds=Bounds(least_tokens, max_blocks, max_tokens))
    assert fits(footprint, available, found.num_blocks, found.num_tokens)
    assert found.num_tokens >= least_tokens
    assert max_blocks is None or found.num_blocks <= max_blocks
    assert max_tokens is None or found.num_tokens <= max_tokens
    if fits(footprint, available, found.num_blocks + 1, found.num_tokens):
        assert found.num_blocks == max_blocks and Bound.BLOCKS in found.bound_by
    if fits(footprint, available, found.num_blocks, found.num_tokens + 1):
        assert found.num_tokens == max_tokens and Bound.TOKENS in found.bound_by
    assert (Bound.BLOCKS in found.bound_by) == (found.num_blocks < found.free_blocks)
    assert (Bound.TOKENS in found.bound_by) == (found.num_tokens < found.free_tokens)


def test_the_quadratic_by_hand() -> None:
    """N blocks of 100 tokens, M = N: N * 10 + N * 1 + N * (100 N + N) * 1 = 4150 at N = 6.35..."""
    footprint = Footprint(100, block_bytes=10, token_bytes=1, pair_bytes=1)
    found = solve_both(footprint, 6 * 11 + 6 * 606, share=BATCH_SHARE)
    assert (found.num_blocks, found.num_tokens) == (6, 6)
    assert found.num_bytes == 6 * 11 + 6 * 606


@pytest.mark.parametrize("pair_bytes", [0, 3])
def test_what_can_never_fit_is_refused_with_the_numbers(pair_bytes: int) -> None:
    footprint = Footprint(16, 1 << 20, 1 << 20, pair_bytes, fixed_bytes=5 << 20)
    impossible: tuple[Callable[[], Solution], ...] = (
        lambda: solve_both(footprint, 4 << 20),
        lambda: solve_both(footprint, -1),
        lambda: solve_blocks(footprint, 4 << 20, num_tokens=1),
        lambda: solve_tokens(footprint, 8 << 20, num_blocks=4),
    )
    for solve in impossible:
        with pytest.raises(
            TooLittleMemory, match=r" need \d+\.\d MiB, but \d+\.\d MiB are available"
        ):
            solve()


def test_nothing_left_is_no_block_and_no_token() -> None:
    footprint = Footprint(16, block_bytes=100, token_bytes=10, fixed_bytes=50)
    assert solve_blocks(footprint, 60, num_tokens=1) == Solution(0, 1, 60, 0, 1)
    assert solve_tokens(footprint, 150, num_blocks=1) == Solution(1, 0, 150, 1, 0)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (16, 0, 1), (16, 1, 0)])
def test_blocks_and_tokens_that_take_nothing_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Footprint(*sizes)
    with pytest.raises(ValueError, match="less than no bytes"):
        Footprint(16, 1, 1, -1)


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 tokens and at most 7"):
        Bounds(least_tokens=8, max_tokens=7)
