"""Decides how many blocks of host memory there are for swapped requests and evicted prefixes."""

from dataclasses import dataclass

from quire.cache.sizing import TooLittleMemory
from quire.engine.config import EngineConfig
from quire.models.kv.staged_queue import staging_bytes
from quire.scheduler.cost import PreemptionMode

GIB = 1 << 30
DEFAULT_GIB = 4.0
"""The default with a GPU. Where device and host share one memory, it is better used for blocks of
the device."""


@dataclass(frozen=True, slots=True)
class SwapSpace:
    """The host's memory for blocks of `block_bytes`: `size_gib`, or None for the default. `is_host`
    says that the device is the host itself.
    """

    size_gib: float | None
    mode: PreemptionMode
    block_bytes: int
    is_host: bool

    @property
    def gib(self) -> float:
        if self.size_gib is None:
            return 0.0 if self.is_host else DEFAULT_GIB
        return self.size_gib

    @property
    def num_blocks(self) -> int:
        return int(self.gib * GIB) // self.block_bytes if self.block_bytes else 0

    @property
    def num_bytes(self) -> int:
        """The host bytes of the blocks."""
        return self.num_blocks * self.block_bytes

    @property
    def staging_bytes(self) -> int:
        """The bytes of a device that is not the host through which blocks come and go."""
        return 0 if self.is_host else staging_bytes(self.num_blocks, self.block_bytes)

    def check(self, available: int) -> None:
        """Raise ValueError if swapping is configured without space, and TooLittleMemory if the
        space is more than the host's `available` bytes.
        """
        if not self.num_blocks and self.mode is PreemptionMode.SWAP:
            raise ValueError(
                f"--preemption-mode is swap, but --swap-space is {self.gib:g} GiB, less than one "
                "block"
            )
        if int(self.gib * GIB) > available:
            raise TooLittleMemory(
                f"--swap-space is {self.gib:g} GiB, but the host has only "
                f"{max(available, 0) / GIB:.1f} GiB available: pass less, or --swap-space 0"
            )


def swap_space(config: EngineConfig, block_bytes: int, *, is_host: bool) -> SwapSpace:
    """Return the configured space for blocks that take `block_bytes` on the host."""
    mode = config.scheduling.preemption_mode
    return SwapSpace(config.memory.swap_space, mode, block_bytes, is_host)
