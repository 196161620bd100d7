"""GiB of the host become blocks, and beside a GPU the staging memory that these go through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sizing import TooLittleMemory
from quire.engine.startup.swap_space import GIB, SwapSpace
from quire.models.kv.staged_queue import HALF_BYTES
from quire.scheduler.cost import PreemptionMode

sizes = st.none() | st.floats(0, 16)
block_bytes = st.integers(1, 1 << 28)


@given(sizes, block_bytes, st.booleans())
def test_space_is_whole_blocks_and_no_more_than_asked_for(
    size_gib: float | None, block_bytes: int, is_host: bool
) -> None:
    space = SwapSpace(size_gib, PreemptionMode.AUTO, block_bytes, is_host)
    num_bytes = int(space.gib * GIB)
    assert space.num_bytes <= num_bytes < space.num_bytes + block_bytes
    space.check(num_bytes)
    if num_bytes:
        with pytest.raises(TooLittleMemory, match="--swap-space is"):
            space.check(num_bytes - 1)


@given(st.floats(0, 16), st.integers(0, 1 << 28), st.integers(1, 1 << 28))
def test_states_take_half_of_the_space_and_have_a_block_each(
    size_gib: float, block_bytes: int, state_bytes: int
) -> None:
    """All of it where there is no attention."""
    mode = PreemptionMode.SWAP
    space = SwapSpace(size_gib, mode, block_bytes, is_host=True, state_bytes=state_bytes)
    num_bytes = int(size_gib * GIB)
    of_states = space.num_states * state_bytes
    assert num_bytes - max(block_bytes, state_bytes) < space.num_bytes <= num_bytes
    if block_bytes:
        assert 2 * of_states <= num_bytes and space.num_states <= space.num_blocks
        half = num_bytes // 2 - state_bytes < of_states
        assert half or num_bytes // (space.num_states + 1) < state_bytes + block_bytes
    if space.num_states and (space.num_blocks or not block_bytes):
        space.check(num_bytes)
    else:
        with pytest.raises(ValueError, match="one state of the recurrent layers"):
            space.check(num_bytes)


@given(sizes, block_bytes)
def test_staging_is_two_halves_of_whole_rows_where_there_is_something_to_stage(
    size_gib: float | None, block_bytes: int
) -> None:
    space = SwapSpace(size_gib, PreemptionMode.AUTO, block_bytes, is_host=False)
    half = space.staging_bytes // 2
    assert half % block_bytes == 0
    assert half <= max(HALF_BYTES, block_bytes)
    assert (half > 0) == (space.num_blocks > 0)
    assert SwapSpace(size_gib, PreemptionMode.AUTO, block_bytes, is_host=True).staging_bytes == 0
