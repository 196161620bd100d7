"""Decides how many blocks and states of host memory there are for swapped requests and evicted
prefixes."""

from dataclasses import dataclass

from quire.cache.sizing import MIB, TooLittleMemory
from quire.engine.config import EngineConfig
from quire.models.kv.staged_queue import staging_bytes
from quire.scheduler.cost import PreemptionMode

GIB = 1 << 30
DEFAULT_GIB = 4.0
"""The default with a GPU. Where device and host share one memory, it is better used for blocks of
the device."""


@dataclass(frozen=True, slots=True)
class SwapSpace:
    """The host's memory for blocks of `block_bytes` and for states of recurrent layers of
    `state_bytes`, 0 without such layers: `size_gib`, or None for the default. `is_host` says that
    the device is the host itself.

    A request needs one state, however long it is. So states take half of the memory; less where
    they are smaller than a block, as each is of use only with a block at least.
    """

    size_gib: float | None
    mode: PreemptionMode
    block_bytes: int
    is_host: bool
    state_bytes: int = 0

    @property
    def gib(self) -> float:
        if self.size_gib is None:
            return 0.0 if self.is_host else DEFAULT_GIB
        return self.size_gib

    @property
    def num_states(self) -> int:
        if not self.state_bytes:
            return 0
        with_blocks = max(self.block_bytes, self.state_bytes) if self.block_bytes else 0
        return int(self.gib * GIB) // (self.state_bytes + with_blocks)

    @property
    def num_blocks(self) -> int:
        left = int(self.gib * GIB) - self.num_states * self.state_bytes
        return left // self.block_bytes if self.block_bytes else 0

    @property
    def num_bytes(self) -> int:
        """The host bytes of the blocks and states."""
        return self.num_blocks * self.block_bytes + self.num_states * self.state_bytes

    @property
    def staging_bytes(self) -> int:
        """The bytes of a device that is not the host through which blocks and states come and
        go."""
        if self.is_host:
            return 0
        of_blocks = staging_bytes(self.num_blocks, self.block_bytes)
        return of_blocks + staging_bytes(self.num_states, self.state_bytes)

    def check(self, available: int) -> None:
        """Raise ValueError if swapping is configured without space, and TooLittleMemory if the
        space is more than the host's `available` bytes.
        """
        has_all = (self.num_blocks or not self.block_bytes) and (
            self.num_states or not self.state_bytes
        )
        if not has_all and self.mode is PreemptionMode.SWAP:
            raise ValueError(
                f"--preemption-mode is swap, but --swap-space is {self.gib:g} GiB, less than "
                f"{self._least_text}"
            )
        if int(self.gib * GIB) > available:
            raise TooLittleMemory(
                f"--swap-space is {self.gib:g} GiB, but the host has only "
                f"{max(available, 0) / GIB:.1f} GiB available: pass less, or --swap-space 0"
            )

    @property
    def _least_text(self) -> str:
        """The least that a request needs, in words."""
        if not self.state_bytes:
            return "one block"
        state = f"one state of the recurrent layers ({self.state_bytes / MIB:.1f} MiB)"
        return f"{state} and as much for blocks" if self.block_bytes else state


def swap_space(
    config: EngineConfig, block_bytes: int, state_bytes: int = 0, *, is_host: bool
) -> SwapSpace:
    """Return the configured space for blocks that take `block_bytes` on the host, and for states of
    recurrent layers that take `state_bytes`."""
    mode = config.scheduling.preemption_mode
    return SwapSpace(config.memory.swap_space, mode, block_bytes, is_host, state_bytes)
