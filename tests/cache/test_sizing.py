"""Bytes to blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sizing import TooLittleMemory, check_model_length_fits, num_blocks_in


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_the_blocks_fit_and_one_more_would_not(budget: int, block_bytes: int) -> None:
    num_blocks = num_blocks_in(budget, block_bytes)
    assert num_blocks * block_bytes <= budget < (num_blocks + 1) * block_bytes


@given(st.integers(0, 64), st.integers(1, 16), st.integers(2, 500))
def test_a_refusal_names_the_length_that_would_fit(
    num_blocks: int, block_size: int, length: int
) -> None:
    def check(max_model_len: int) -> None:
        check_model_length_fits(
            num_blocks, block_size=block_size, block_bytes=1 << 20, max_model_len=max_model_len
        )

    fitting = max(num_blocks - 1, 0) * block_size
    if length <= fitting:
        check(length)
        return
    with pytest.raises(TooLittleMemory, match=f"length that fits is {fitting}:"):
        check(length)
