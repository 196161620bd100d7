"""Memory of the host that a GPU copies from and to by itself. It is exactly as large as asked:
torch's own allocator of pinned memory rounds up to a power of two, up to twice as much.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.cache.sizing import TooLittleMemory
from quire.models.kv.huge_pages import zeros_on_touch

GIB = 1 << 30
PORTABLE = 1
"""`cudaHostRegisterPortable`: pinned for all devices of the process."""


class PagePinner(Protocol):
    """Pins pages of the host."""

    def pin(self, address: int, num_bytes: int) -> str | None:
        """Pin pages for the GPU; return why that failed, in words, or None if it did not."""

    def unpin(self, address: int) -> None:
        """Undo `pin`, when all copies from and to these pages are done."""


class CUDAPages:
    """Pins by CUDA's runtime."""

    def pin(self, address: int, num_bytes: int) -> str | None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = cudart.cudaHostRegister(address, num_bytes, PORTABLE)
        if error == cudart.cudaError.success:
            return None
        return f"CUDA says {cudart.cudaGetErrorString(error)!r} ({int(error)})"

    def unpin(self, address: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


class PinnedMemory(NamedTuple):
    """Zeros, uint8; `unpin` must be called before the last view of them goes."""

    zeros: Tensor
    unpin: Callable[[], None]


def pinned_zeros(num_bytes: int, pinner: PagePinner, *, huge_pages: bool) -> PinnedMemory:
    """Return `num_bytes` of pinned zeros. Raises TooLittleMemory where they cannot be pinned."""
    zeros = zeros_on_touch(num_bytes, huge_pages=huge_pages)
    why_not = pinner.pin(zeros.data_ptr(), num_bytes)
    if why_not is not None:
        raise TooLittleMemory(
            f"{num_bytes / GIB:.2f} GiB of the host's memory for --swap-space cannot be pinned for "
            f"the GPU: {why_not}. Pass a smaller --swap-space, or --swap-space 0"
        )
    return PinnedMemory(zeros, partial(pinner.unpin, zeros.data_ptr()))
