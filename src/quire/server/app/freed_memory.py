"""Gives freed memory back to the system."""

import ctypes

M_MMAP_THRESHOLD = -3
"""glibc's number for this parameter (malloc.h)."""
THRESHOLD_BYTES = 64 * 1024


def return_large_blocks() -> None:
    """Let every block of 64 KiB or more be mapped on its own, and unmapped when it is freed. glibc
    begins so, but raises its threshold up to 32 MiB with each large block that is freed; later ones
    then lie on the heap, where small ones above them hold their memory for good. Other C libraries
    are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES)
