"""How many blocks of the host's memory take what is swapped out."""

from quire.cache.sizing import TooLittleMemory
from quire.engine.config import EngineConfig
from quire.scheduler.cost import PreemptionMode

GIB = 1 << 30
DEFAULT_GIB = 4.0
"""Beside a GPU. Where device and host are one memory, blocks of the device serve better."""


def num_host_blocks(
    config: EngineConfig, block_bytes: int, *, is_host: bool, available: int
) -> int:
    """Of `available` bytes of the host. `is_host`: the device is the host itself. Raises ValueError
    if there is nowhere to swap to, TooLittleMemory if the space is not there.
    """
    asked = config.swap_space
    if asked is None:
        asked = 0.0 if is_host else DEFAULT_GIB
    num_bytes = int(asked * GIB)
    num_blocks = num_bytes // block_bytes if block_bytes else 0
    if not num_blocks and config.preemption_mode == PreemptionMode.SWAP:
        raise ValueError(
            f"--preemption-mode is swap, but --swap-space is {asked:g} GiB, less than one block"
        )
    if num_bytes > available:
        raise TooLittleMemory(
            f"--swap-space is {asked:g} GiB, but the host has only {max(available, 0) / GIB:.1f} "
            "GiB available: pass less, or --swap-space 0"
        )
    return num_blocks
