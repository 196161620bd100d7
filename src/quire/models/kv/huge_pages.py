"""Memory straight from the system, and back: zeros whose pages it maps when they are first written,
on huge pages where it has them. Small pages make reading in every step up to a fifth slower: a
processor's prefetcher stops at the end of a page, and its TLB holds few of them.
"""

import ctypes
import mmap
from collections.abc import Iterator
from itertools import count

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
"""The size on x86-64, and on most ARM systems."""
GOLDEN_RATIO = (5**0.5 - 1) / 2


def zeros_on_touch(num_bytes: int, *, huge_pages: bool = True, offset: int = 0) -> Tensor:
    """Return zeros, uint8 [num_bytes], which begin `offset` bytes behind the start of a huge page.

    A huge page that is first written costs a tenth of a millisecond, and up to ten where a virtual
    machine must ask its host for it. Tensors that are filled side by side should have different
    offsets: they come to new pages one after another then, and not all in one step. The page that
    they begin in is resident as a whole.

    But for it only full huge pages are requested, so that no memory beyond `num_bytes` is resident.
    The memory lives as long as a view of it. Without `huge_pages`, the system is advised to use
    none.
    """
    num_mapped = HUGE_PAGE_BYTES + offset + num_bytes
    advice: int | None = getattr(mmap, "MADV_HUGEPAGE" if huge_pages else "MADV_NOHUGEPAGE", None)
    if advice is None:
        memory = torch.from_numpy(np.zeros(num_mapped, dtype=np.uint8))
        return memory[_padding(memory) + offset :][:num_bytes]
    pages = mmap.mmap(-1, num_mapped, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    begin = _padding(memory) + offset
    zeros = memory[begin:][:num_bytes]
    whole = (offset + num_bytes) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole > 0:
        pages.madvise(advice, begin - offset, whole)
    return zeros


def page_offsets() -> Iterator[int]:
    """Yield offsets for `zeros_on_touch` that lie evenly over a huge page, however many are taken:
    multiples of the golden ratio (Weyl's sequence), on small pages."""
    for number in count():
        share = number * GOLDEN_RATIO % 1
        yield int(share * HUGE_PAGE_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE


def return_free_memory() -> None:
    """Return freed heap memory to the system: after a load glibc keeps hundreds of MB for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _padding(memory: Tensor) -> int:
    return -memory.data_ptr() % HUGE_PAGE_BYTES
