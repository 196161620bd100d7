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
