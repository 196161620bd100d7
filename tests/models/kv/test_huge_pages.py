"""Memory of the system's own pages."""

import mmap
import re
from itertools import islice, pairwise
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.models.kv.huge_pages import (
    HUGE_PAGE_BYTES,
    page_offsets,
    return_free_memory,
    zeros_on_touch,
)


@given(st.integers(0, 5 * HUGE_PAGE_BYTES), st.integers(0, HUGE_PAGE_BYTES - 1))
def test_it_is_as_long_as_asked_and_begins_where_asked(num_bytes: int, offset: int) -> None:
    memory = zeros_on_touch(num_bytes, offset=offset)
    assert memory.shape == (num_bytes,)
    assert memory.dtype is torch.uint8
    assert num_bytes == 0 or memory.data_ptr() % HUGE_PAGE_BYTES == offset


@given(st.integers(1, 300))
def test_offsets_lie_evenly_over_a_page_however_many_there_are(num: int) -> None:
    offsets = sorted(islice(page_offsets(), num))
    ends = [*offsets, HUGE_PAGE_BYTES]
    gaps = [after - before for before, after in pairwise(ends)]
    assert offsets[0] == 0
    assert max(gaps) <= 2 * HUGE_PAGE_BYTES / num + mmap.PAGESIZE
    assert all(each % mmap.PAGESIZE == 0 for each in offsets)


@pytest.mark.parametrize("huge_pages", [True, False])
@pytest.mark.parametrize("num_bytes", [1, 4097, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
@pytest.mark.parametrize("offset", [0, 4096, HUGE_PAGE_BYTES - 1])
def test_it_is_zero_and_lives_as_long_as_a_view_of_it(
    num_bytes: int, huge_pages: bool, offset: int
) -> None:
    memory = zeros_on_touch(num_bytes, huge_pages=huge_pages, offset=offset)
    assert not memory.any()
    last = memory[-1:]
    last.fill_(7)
    del memory
    assert last.tolist() == [7]


@pytest.mark.parametrize(("huge_pages", "flag"), [(True, "hg"), (False, "nh")])
def test_the_system_is_told_whether_to_use_huge_pages(huge_pages: bool, flag: str) -> None:
    memory = zeros_on_touch(4 * HUGE_PAGE_BYTES, huge_pages=huge_pages)
    assert flag in flags_of_mapping(memory.data_ptr())


def flags_of_mapping(address: int) -> list[str]:
    """Return the `VmFlags` of the mapping that `address` is in, as proc(5) has them."""
    maps = Path("/proc/self/smaps")
    if not maps.exists() or "VmFlags" not in maps.read_text():
        pytest.skip("needs /proc/self/smaps with VmFlags")
    is_inside = False
    for line in maps.read_text().splitlines():
        if match := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            first, end = (int(part, 16) for part in match.groups())
            is_inside = first <= address < end
        elif is_inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


def test_what_was_freed_between_things_that_stay_goes_back() -> None:
    pieces = [torch.ones(1 << 14) for _ in range(2000)]
    kept = pieces[::50]
    before = resident_bytes()
    del pieces
    return_free_memory()
    assert before - resident_bytes() > 64 << 20
    assert all(piece.sum() == len(piece) for piece in kept)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
