"""Decides how many blocks of host memory there are for swapped requests."""

from quire.cache.sizing import TooLittleMemory
from quire.scheduler.cost import PreemptionMode

GIB = 1 << 30
DEFAULT_GIB = 4.0
"""The default with a GPU. Where device and host share one memory, it is better used for blocks of
the device."""


def num_host_blocks(
    size_gib: float | None,
    mode: PreemptionMode,
    block_bytes: int,
    *,
    is_host: bool,
    available: int,
) -> int:
    """Return the number of host blocks in `size_gib`, None for the default. `available` are bytes
    of the host; `is_host` says that the device is the host itself. Raises ValueError if swapping is
    configured without space, and TooLittleMemory if the space is not available.
    """
    if size_gib is None:
        size_gib = 0.0 if is_host else DEFAULT_GIB
    num_bytes = int(size_gib * GIB)
    num_blocks = num_bytes // block_bytes if block_bytes else 0
    if not num_blocks and mode is PreemptionMode.SWAP:
        raise ValueError(
            f"--preemption-mode is swap, but --swap-space is {size_gib:g} GiB, less than one block"
        )
    if num_bytes > available:
        raise TooLittleMemory(
            f"--swap-space is {size_gib:g} GiB, but the host has only "
            f"{max(available, 0) / GIB:.1f} GiB available: pass less, or --swap-space 0"
        )
    return num_blocks
