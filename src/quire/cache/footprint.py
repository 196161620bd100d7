"""The bytes of KV blocks and of a step of a number of tokens, and the reverse: the blocks and
tokens that fit into a number of bytes. All arithmetic is exact, in integers; every answer is
checked against its footprint."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import isqrt

from quire.cache.sizing import MIB, TooLittleMemory

BATCH_SHARE = Fraction(1, 100)
"""The step tokens per token of KV memory, if both numbers are unknown."""


class Bound(StrEnum):
    """The names of the upper bounds."""

    BLOCKS = "max_blocks"
    TOKENS = "max_tokens"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits within which blocks and tokens are chosen; None is no bound. Raises ValueError if
    the least tokens are above the most.
    """

    least_tokens: int = 1
    max_blocks: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < self.least_tokens:
            raise ValueError(
                f"at least {self.least_tokens} tokens and at most {self.max_tokens} are asked for"
            )


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of device memory by their dependence.

    - block_bytes: one block of KV.
    - token_bytes: what each token of a step takes at the peak: its activations, logits, id,
      position and slot.
    - pair_bytes: masks and slots to read for each pair of a step's token and a token of its
      context, where an attention backend keeps them; 0 where none does.
    - fixed_bytes: work space and whatever else does not grow; `graph_bytes` of them for recorded
      steps.
    - num_states, state_bytes: the states of recurrent layers, and the bytes of one.

    Raises ValueError where tokens take less than one byte, and blocks, unless there are states.
    """

    block_size: int
    block_bytes: int
    token_bytes: int
    pair_bytes: int = 0
    fixed_bytes: int = 0
    graph_bytes: int = 0
    num_states: int = 0
    state_bytes: int = 0

    def __post_init__(self) -> None:
        least = 0 if self.state_bytes else 1
        if min(self.block_size, self.token_bytes) < 1 or self.block_bytes < least:
            raise ValueError(
                "blocks and tokens take at least one byte each, and a model without attention has "
                f"no KV memory to size: {self}"
            )
        if min(self.pair_bytes, self.fixed_bytes) < 0:
            raise ValueError(f"nothing takes less than no bytes: {self}")

    def num_bytes(self, num_blocks: int, num_tokens: int) -> int:
        """Return the bytes of `num_blocks` of KV and a step of `num_tokens`. The step's tokens can
        see the whole of KV memory, and each other.
        """
        num_pairs = num_tokens * (num_blocks * self.block_size + num_tokens)
        return (
            num_blocks * self.block_bytes
            + num_tokens * self.token_bytes
            + num_pairs * self.pair_bytes
            + self.fixed_bytes
            + self.num_states * self.state_bytes
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """`num_blocks` and `num_tokens` take `num_bytes`. One more unit of the unknown does not fit, or
    exceeds a given bound.

    `free_blocks` and `free_tokens` are what memory alone would have allowed, and `bound_by` names
    the bounds that are less than that.
    """

    num_blocks: int
    num_tokens: int
    num_bytes: int
    free_blocks: int
    free_tokens: int
    bound_by: tuple[Bound, ...] = ()


def solve_both(
    footprint: Footprint,
    available: int,
    *,
    share: Fraction = BATCH_SHARE,
    bounds: Bounds = UNBOUNDED,
) -> Solution:
    """Return how many blocks and how many tokens of a step fit into `available` bytes, where both
    are unknown. Raises TooLittleMemory.

    The tokens of a step follow from the blocks that fit beside them, within the bounds; then what
    rounding left over goes first to blocks, then to tokens, until one more of either does not fit.
    """
    num_blocks = _blocks_beside_share(footprint, available, share)
    if num_blocks is None:
        raise _no_room("work space and steps of no tokens", footprint.num_bytes(0, 0), available)
    wanted = max(int(num_blocks * footprint.block_size * share), bounds.least_tokens)
    num_tokens = _at_most(wanted, bounds.max_tokens)
    blocks = solve_blocks(footprint, available, num_tokens=num_tokens, max_blocks=bounds.max_blocks)
    tokens = solve_tokens(
        footprint, available, num_blocks=blocks.num_blocks, max_tokens=bounds.max_tokens
    )
    return _solution(
        footprint,
        blocks.num_blocks,
        tokens.num_tokens,
        free_blocks=blocks.free_blocks,
        free_tokens=max(wanted, tokens.free_tokens),
    )


def _blocks_beside_share(footprint: Footprint, available: int, share: Fraction) -> int | None:
    """Return the number of blocks that fit beside a step of `share` tokens per token of theirs, or
    None if the constant part is already too large.

    With N blocks of s tokens, M = share * N * s tokens in a step, share = u / v, and bytes b for a
    block, t for a token, p for a pair, f fixed, all of A is taken where

        N b + M t + M (N s + M) p + f = A
        N b + (u/v) N s t + (u/v) (1 + u/v) (N s)^2 p + f - A = 0           | * v^2

        p u (u + v) s^2 * N^2  +  v (v b + u s t) * N  +  v^2 (f - A)  =  0

    This is a quadratic whose larger root is N, and linear where no attention keeps pairs (p = 0).
    """
    u, v = share.numerator, share.denominator
    size = footprint.block_size
    return _larger_root(
        footprint.pair_bytes * u * (u + v) * size**2,
        v * (v * footprint.block_bytes + u * size * footprint.token_bytes),
        v**2 * (footprint.num_bytes(0, 0) - available),
    )


def solve_blocks(
    footprint: Footprint, available: int, *, num_tokens: int, max_blocks: int | None = None
) -> Solution:
    """Return the number of blocks that fit beside a step of `num_tokens`. Raises TooLittleMemory if
    the step alone does not fit."""
    rest = available - footprint.num_bytes(0, num_tokens)
    if rest < 0:
        raise _no_room(f"steps of {num_tokens} tokens", available - rest, available)
    each = footprint.block_bytes + num_tokens * footprint.block_size * footprint.pair_bytes
    fitting = rest // each
    num_blocks = _at_most(fitting, max_blocks)
    return _solution(footprint, num_blocks, num_tokens, free_blocks=fitting, free_tokens=num_tokens)


def solve_tokens(
    footprint: Footprint, available: int, *, num_blocks: int, max_tokens: int | None = None
) -> Solution:
    """Return the number of step tokens that fit beside `num_blocks`. Raises TooLittleMemory if the
    blocks alone do not fit.

        p * M^2  +  (t + N s p) * M  +  N b + f - A  =  0
    """
    cached = num_blocks * footprint.block_size
    fitting = _larger_root(
        footprint.pair_bytes,
        footprint.token_bytes + cached * footprint.pair_bytes,
        footprint.num_bytes(num_blocks, 0) - available,
    )
    if fitting is None:
        raise _no_room(f"{num_blocks} KV blocks", footprint.num_bytes(num_blocks, 0), available)
    num_tokens = _at_most(fitting, max_tokens)
    return _solution(footprint, num_blocks, num_tokens, free_blocks=num_blocks, free_tokens=fitting)


def _larger_root(a: int, b: int, c: int) -> int | None:
    """Return the whole part of the larger x with a x^2 + b x + c = 0, where a >= 0 and b > 0.

    The answer is None if the root is negative or does not exist: c > 0 means that the constant part
    alone is too large.
    """
    square = b * b - 4 * a * c
    if square < 0 or c > 0:
        return None
    return -c // b if a == 0 else (isqrt(square) - b) // (2 * a)


def _at_most(value: int, bound: int | None) -> int:
    return value if bound is None else min(value, bound)


def _solution(
    footprint: Footprint, num_blocks: int, num_tokens: int, *, free_blocks: int, free_tokens: int
) -> Solution:
    chosen = {
        Bound.BLOCKS: (num_blocks, free_blocks),
        Bound.TOKENS: (num_tokens, free_tokens),
    }
    return Solution(
        num_blocks,
        num_tokens,
        footprint.num_bytes(num_blocks, num_tokens),
        free_blocks,
        free_tokens,
        tuple(bound for bound, (taken, free) in chosen.items() if taken < free),
    )


def _no_room(what: str, needed: int, available: int) -> TooLittleMemory:
    return TooLittleMemory(
        f"{what} need {needed / MIB:.1f} MiB, but {max(available, 0) / MIB:.1f} MiB are available"
    )
