"""Computes how many blocks fit into bytes, and how many requests into blocks: arithmetic only.
Measuring a device is the engine's work.
"""

from dataclasses import dataclass
from math import inf

from quire.cache.layout import Layout

MIB = 1 << 20
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
DEFAULT_SHARE = 0.9
BY_BLOCKS = "--num-gpu-blocks-override"
BY_BYTES = "--kv-cache-memory-bytes"
BY_TOKENS = "--kv-cache-tokens"
BY_SHARE = "--gpu-memory-utilization"


class TooLittleMemory(Exception):
    """Raised if the requested memory does not fit; the text has the numbers and the options to
    change."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The size that KV memory shall have, given in one way at most: so many blocks, bytes, tokens
    of context, or a share of the device. Where nothing is given it is the share DEFAULT_SHARE.
    `is_device_shared`: other programs have shares of their own, which this one leaves alone.

    Raises ValueError where it is given in two ways: none of them wins in silence.
    """

    num_blocks: int | None = None
    num_bytes: int | None = None
    num_tokens: int | None = None
    share: float | None = None
    is_device_shared: bool = False

    def __post_init__(self) -> None:
        if len(self._given) > 1:
            raise ValueError(
                f"{' and '.join(self._given)} both say how large KV memory shall be: give one"
            )

    @property
    def option(self) -> str:
        """The command-line option to change for another size."""
        return self._given[0] if self._given else BY_SHARE

    @property
    def is_explicit(self) -> bool:
        """Whether the size of KV memory is given by itself, whatever the device has."""
        return bool(self._given) and self.share is None

    @property
    def device_share(self) -> float:
        """The share of the device that may be used in all: everything, if the size of KV memory is
        given by itself.
        """
        if self.is_explicit:
            return 1.0
        return DEFAULT_SHARE if self.share is None else self.share

    def blocks(self, layout: Layout, *, block_size: int, max_chunk_tokens: int) -> int | None:
        """Return the number of blocks, the null block included; None if the device decides it.

        For a number of tokens these are as many as one request of that length ever holds. A model
        without attention has the null block alone. Raises ValueError where a size is given for it.
        """
        if not layout.groups:
            if self.is_explicit:
                raise ValueError(
                    f"{self.option} sizes KV memory, but no layer of the model has attention: "
                    "leave it out"
                )
            return 1
        if self.num_tokens is not None:
            return 1 + layout.max_blocks(
                self.num_tokens, block_size=block_size, max_chunk_tokens=max_chunk_tokens
            )
        if self.num_bytes is not None:
            return self.num_bytes // layout.block_bytes(block_size)
        return self.num_blocks

    @property
    def _given(self) -> tuple[str, ...]:
        options = {
            BY_BLOCKS: self.num_blocks,
            BY_BYTES: self.num_bytes,
            BY_TOKENS: self.num_tokens,
            BY_SHARE: self.share,
        }
        return tuple(option for option, value in options.items() if value is not None)


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """The requests that `num_blocks`, the null block among them, can hold, and `num_states` of
    recurrent layers, the null state among them; 0 without such layers.
    """

    layout: Layout
    num_blocks: int
    block_size: int
    max_chunk_tokens: int
    num_states: int = 0

    @property
    def num_usable(self) -> int:
        return max(self.num_blocks - 1, 0)

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes(self.block_size)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token that every layer still needs."""
        return len(self.layout.groups) * self.layout.block_bytes(1)

    def max_blocks(self, num_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` ever holds."""
        return self.layout.max_blocks(
            num_tokens, block_size=self.block_size, max_chunk_tokens=self.max_chunk_tokens
        )

    def concurrency(self, max_model_len: int) -> float:
        """Return how many requests of the model length run at once, each holding the most that it
        ever does.
        """
        most = float(self.num_states - 1) if self.num_states else inf
        if not self.layout.groups:
            return most
        return min(self.num_usable / self.max_blocks(max_model_len), most)

    def num_tokens(self, max_model_len: int) -> int:
        """Return the context that requests of the model length have together: without windows
        simply the slots of the usable blocks. States hold any number of tokens.
        """
        if not self.layout.groups:
            return (self.num_states - 1) * max_model_len
        num_places = -(-max_model_len // self.block_size) * self.block_size
        return self.num_usable * num_places // self.max_blocks(max_model_len)

    def largest_length(self, max_length: int) -> int:
        """Return the length of the longest request that fits, up to `max_length`; 0 if none does. A
        longer request never holds fewer blocks, so a binary search finds it.
        """
        low, high = 0, max_length
        while low < high:
            middle = (low + high + 1) // 2
            if self.max_blocks(middle) <= self.num_usable:
                low = middle
            else:
                high = middle - 1
        return low

    def check(self, max_model_len: int, budget: Budget) -> None:
        """Raise TooLittleMemory unless one request of `max_model_len` fits."""
        needed = self.max_blocks(max_model_len) + 1
        if self.num_blocks >= needed:
            return
        fitting = self.largest_length(max_model_len)
        advice = f"pass --max-model-len {fitting}, or " if fitting > 1 else ""
        raise TooLittleMemory(
            f"one request of --max-model-len {max_model_len} needs {needed} KV blocks "
            f"({needed * self.block_bytes / MIB:.1f} MiB, block 0 included), but "
            f"{self.num_blocks} ({self.num_blocks * self.block_bytes / MIB:.1f} MiB) are available."
            f" The largest model length that fits is {fitting}: {advice}give more memory by "
            f"{remedies(budget)}"
        )


def remedies(budget: Budget) -> str:
    """Return the options that give more memory, the deciding one first."""
    others = [each for each in (BY_SHARE, BY_BYTES, BY_TOKENS) if each != budget.option]
    return (
        f"{budget.option} (or, in its place, {' or '.join(others)}), smaller elements by "
        "--kv-cache-dtype, or smaller steps by --max-num-batched-tokens and --max-num-seqs"
    )


def useful_blocks(per_request: int, *, max_num_seqs: int, keeps_prefixes: bool) -> int:
    """Return the number of blocks beyond which more serve nothing: those for all requests that run
    at once, as many again for prefixes where they are kept, and the null block.
    """
    return (2 if keeps_prefixes else 1) * max_num_seqs * per_request + 1


def budget_before_load(*, total: int, used: int, share: float, weight_bytes: int) -> int:
    """Return the bytes that the weights will leave for steps and KV; negative if they do not
    fit.
    """
    return budget_after_load(total=total, used=used, share=share) - weight_bytes


def budget_after_load(*, total: int, used: int, share: float) -> int:
    """Return the bytes that are left for steps and KV where `used`, weights and all, is
    measured.
    """
    return int(total * share) - used
