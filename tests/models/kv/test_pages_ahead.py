"""Memory of KV blocks that is mapped before it is written."""

import ctypes
import mmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quire.models.kv.huge_pages import HUGE_PAGE_BYTES, page_offsets, zeros_on_touch
from quire.models.kv.pages_ahead import (
    AHEAD_SHARE,
    BUSY_SHARE,
    MADV_POPULATE_WRITE,
    PagesAhead,
)

PAGE = mmap.PAGESIZE


def can_map_ahead() -> bool:
    """Whether the system knows the advice: Linux does, from 5.14 on."""
    with mmap.mmap(-1, PAGE) as pages:
        try:
            pages.madvise(MADV_POPULATE_WRITE)
        except (AttributeError, OSError):
            return False
        return True


pytestmark = pytest.mark.skipif(not can_map_ahead(), reason="needs Linux 5.14 to map pages ahead")


def block_tensors(num_blocks: int, block_bytes: list[int]) -> list[Tensor]:
    """Tensors [num_blocks, bytes], none of whose memory is mapped."""
    offsets = page_offsets()
    return [
        zeros_on_touch(num_blocks * each, huge_pages=False, offset=next(offsets)).view(
            num_blocks, each
        )
        for each in block_bytes
    ]


def is_mapped(address: int) -> bool:
    found = (ctypes.c_ubyte * 1)()
    page = ctypes.c_void_p(address - address % PAGE)
    assert ctypes.CDLL(None).mincore(page, ctypes.c_size_t(PAGE), found) == 0
    return bool(found[0] & 1)


def num_mapped(tensor: Tensor) -> int:
    """The number of blocks from the first on whose memory is mapped, as far as it goes."""
    for block, row in enumerate(tensor):
        if not is_mapped(row.data_ptr()) or not is_mapped(row.data_ptr() + row.nbytes - 1):
            return block
    return len(tensor)


def map_all(pages: PagesAhead, num_used: int, *, is_idle: bool = True) -> int:
    num = 0
    while pages.map_next(num_used, is_idle=is_idle):
        num += 1
        assert num < 10_000
    return num


@given(
    st.integers(1, 300),
    st.lists(st.integers(1, 8 * PAGE), min_size=1, max_size=4),
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=3),
)
def test_the_blocks_in_use_and_those_that_come_next_are_mapped(
    num_blocks: int,
    block_bytes: list[int],
    num_ahead: int,
    used: list[tuple[int, bool]],
) -> None:
    tensors = block_tensors(num_blocks, block_bytes)
    pages = PagesAhead(tensors, num_ahead * sum(block_bytes))
    wanted, num_ahead = 0, min(num_ahead, int(AHEAD_SHARE * num_blocks))
    for num_used, is_idle in used:
        map_all(pages, num_used, is_idle=is_idle)
        num_next = num_ahead if is_idle else int(BUSY_SHARE * num_ahead)
        wanted = min(max(wanted, num_used + num_next), num_blocks)
        for tensor in tensors:
            assert num_mapped(tensor) >= wanted
            surplus = num_mapped(tensor) - wanted
            assert surplus * tensor[0].nbytes <= HUGE_PAGE_BYTES


def test_what_is_written_already_stays() -> None:
    tensors = block_tensors(600, [PAGE, 3 * PAGE])
    for tensor in tensors:
        tensor[::7] = 5
    assert map_all(PagesAhead(tensors), 600) > 0
    for tensor in tensors:
        assert num_mapped(tensor) == 600
        assert tensor[::7].eq(5).all()
        assert not tensor[1::7].any()


def test_a_cache_without_memory_has_nothing_to_map() -> None:
    assert not PagesAhead(()).map_next(9, is_idle=True)
    assert not PagesAhead([torch.zeros(0, 4)]).map_next(9, is_idle=True)
