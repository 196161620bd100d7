"""Memory straight from the system, and back: zeros whose pages it hands out when they are first
written, huge ones where it has them. Small ones cost what is read in every step up to a fifth of
its speed: a processor's read-ahead stops at a page's end, and it remembers where few pages are.
"""

import ctypes
import mmap

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
"""Of x86-64, and of most ARM systems."""


def zeros_on_touch(num_bytes: int) -> Tensor:
    """uint8 [num_bytes] from the start of a huge page on. Only whole ones are asked for, so that
    nothing beyond them is ever resident. It lives as long as a view of it."""
    memory = _pages(num_bytes + HUGE_PAGE_BYTES, num_bytes)
    return memory[_padding(memory) :][:num_bytes]


def give_back() -> None:
    """What was freed goes to the system: glibc keeps it for later, hundreds of MB after a load."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _pages(num_bytes: int, num_used: int) -> Tensor:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    whole = num_used // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole:
        pages.madvise(mmap.MADV_HUGEPAGE, _padding(memory), whole)
    return memory


def _padding(memory: Tensor) -> int:
    return -memory.data_ptr() % HUGE_PAGE_BYTES
