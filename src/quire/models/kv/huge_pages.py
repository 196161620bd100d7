"""Memory straight from the system, and back: zeros whose pages it maps when they are first written,
on huge pages where it has them. Small pages make reading in every step up to a fifth slower: a
processor's prefetcher stops at the end of a page, and its TLB holds few of them.
"""

import ctypes
import mmap

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
"""The size on x86-64, and on most ARM systems."""


def zeros_on_touch(num_bytes: int, *, huge_pages: bool = True) -> Tensor:
    """Return zeros, uint8 [num_bytes], aligned to a huge page.

    Only full huge pages are requested, so that no memory beyond `num_bytes` is resident. The memory
    lives as long as a view of it. Without `huge_pages`, the system is advised to use none.
    """
    advice = "MADV_HUGEPAGE" if huge_pages else "MADV_NOHUGEPAGE"
    memory = _pages(num_bytes + HUGE_PAGE_BYTES, num_bytes, advice)
    return memory[_padding(memory) :][:num_bytes]


def return_free_memory() -> None:
    """Return freed heap memory to the system: after a load glibc keeps hundreds of MB for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _pages(num_bytes: int, num_used: int, advice: str) -> Tensor:
    value: int | None = getattr(mmap, advice, None)
    if value is None:
        return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    whole = num_used // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole:
        pages.madvise(value, _padding(memory), whole)
    return memory


def _padding(memory: Tensor) -> int:
    return -memory.data_ptr() % HUGE_PAGE_BYTES
