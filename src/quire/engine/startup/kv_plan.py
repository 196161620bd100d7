"""Decides the number of KV blocks and the token budget of a step, from the configuration and the
available memory, with the reasons. This is arithmetic only: `memory.py` measures.
"""

from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.footprint import (
    Bound,
    Bounds,
    Footprint,
    Solution,
    solve_blocks,
    solve_both,
    solve_tokens,
)
from quire.cache.layout import Layout
from quire.cache.sizing import MIB, Budget, KVCapacity, TooLittleMemory, remedies, useful_blocks


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of requests and steps, in tokens but for `max_num_seqs`.

    max_model_len: the longest request, prompt and output together.
    model_max_len: the longest one that the model supports.
    num_tokens: the token budget of a step if one is configured, else None.
    default_token_budget: the largest budget that is chosen then, the smallest batch at which the
        device is about as fast as it gets.
    """

    max_model_len: int
    model_max_len: int
    max_num_seqs: int
    num_tokens: int | None
    default_token_budget: int

    @property
    def max_step_tokens(self) -> int:
        """The most tokens that a step may have; each running request must get one."""
        return self.num_tokens or max(self.default_token_budget, self.max_num_seqs)


class Reasons(NamedTuple):
    """The reasons for the number of blocks and for the token budget of a step, for people."""

    num_blocks: str
    num_tokens: str


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The decision. KV memory, steps and what is fixed take `num_bytes` of the device together;
    `num_tokens` is the token budget of a step."""

    capacity: KVCapacity
    limits: Limits
    num_tokens: int
    num_bytes: int
    reasons: Reasons
    num_host_blocks: int = 0
    num_host_states: int = 0


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """The memory for steps and KV: `available` bytes of the device.

    If it is unified, other work uses the same memory, and no more is taken than can be of use. The
    memory of a discrete GPU is taken whole.
    """

    available: int
    is_unified: bool
    keeps_prefixes: bool

    def useful_blocks(self, layout: Layout, limits: Limits, block_size: int) -> int | None:
        """Return the number of blocks beyond which more are of no use; None for no bound."""
        if not self.is_unified:
            return None
        per_request = layout.max_blocks(
            limits.max_model_len, block_size=block_size, max_chunk_tokens=limits.max_step_tokens
        )
        return useful_blocks(
            per_request, max_num_seqs=limits.max_num_seqs, keeps_prefixes=self.keeps_prefixes
        )


def plan_kv(
    layout: Layout, footprint: Footprint, limits: Limits, budget: Budget, memory: AvailableMemory
) -> KVPlan:
    """Decide blocks and token budget. Raises TooLittleMemory with the numbers and the remedies."""
    solution = solve_kv(layout, footprint, limits, budget, memory)
    capacity = KVCapacity(
        layout,
        solution.num_blocks,
        footprint.block_size,
        solution.num_tokens,
        footprint.num_states,
    )
    capacity.check(limits.max_model_len, budget)
    reasons = Reasons(
        f"as {budget.option} says" if budget.is_explicit else _why_blocks(solution),
        _why_tokens(solution, limits, are_blocks_given=budget.is_explicit),
    )
    return KVPlan(capacity, limits, solution.num_tokens, solution.num_bytes, reasons)


def solve_kv(
    layout: Layout, footprint: Footprint, limits: Limits, budget: Budget, memory: AvailableMemory
) -> Solution:
    """Return the plan that fits, whether or not a request of `max_model_len` does. Raises
    TooLittleMemory, but never if a larger footprint would fit."""
    size = footprint.block_size
    given = budget.blocks(layout, block_size=size, max_chunk_tokens=limits.max_step_tokens)
    useful = memory.useful_blocks(layout, limits, size)
    try:
        solution = _solve(footprint, limits, memory.available, num_blocks=given, useful=useful)
        if solution.num_bytes > memory.available or solution.num_tokens < limits.max_num_seqs:
            raise _too_large(footprint, solution.num_blocks, limits, memory.available)
    except TooLittleMemory as error:
        way = "ask for less" if budget.is_explicit else "no request fits: give more memory"
        raise TooLittleMemory(f"{error}; {way} by {remedies(budget)}") from None
    return solution


def _solve(
    footprint: Footprint,
    limits: Limits,
    available: int,
    *,
    num_blocks: int | None,
    useful: int | None,
) -> Solution:
    num_tokens = limits.num_tokens
    if num_blocks is None and num_tokens is None:
        return solve_both(
            footprint,
            available,
            bounds=Bounds(limits.max_num_seqs, useful, limits.max_step_tokens),
        )
    if num_blocks is None:
        return solve_blocks(
            footprint, available, num_tokens=limits.max_step_tokens, max_blocks=useful
        )
    if num_tokens is None:
        return solve_tokens(
            footprint, available, num_blocks=num_blocks, max_tokens=limits.max_step_tokens
        )
    num_bytes = footprint.num_bytes(num_blocks, num_tokens)
    return Solution(num_blocks, num_tokens, num_bytes, num_blocks, num_tokens)


def _too_large(
    footprint: Footprint, num_blocks: int, limits: Limits, available: int
) -> TooLittleMemory:
    num_tokens = limits.num_tokens or limits.max_num_seqs
    needed = footprint.num_bytes(num_blocks, num_tokens)
    return TooLittleMemory(
        f"{num_blocks} KV blocks beside a step of {num_tokens} tokens need {needed / MIB:.1f} MiB, "
        f"but {max(available, 0) / MIB:.1f} MiB are available"
    )


def _why_blocks(solution: Solution) -> str:
    if Bound.BLOCKS in solution.bound_by:
        return f"no more can be of use; memory would allow {solution.free_blocks}"
    return "all that memory allows"


def _why_tokens(solution: Solution, limits: Limits, *, are_blocks_given: bool) -> str:
    if limits.num_tokens is not None:
        return "as --max-num-batched-tokens says"
    if Bound.TOKENS in solution.bound_by:
        cause = "where a larger step is no better"
        if limits.max_num_seqs > limits.default_token_budget:
            cause = "one for each of --max-num-seqs"
        return f"{cause}; memory would allow {solution.free_tokens}"
    if solution.num_tokens == limits.max_num_seqs:
        return "one for each of --max-num-seqs; memory allows no more"
    return "all that memory allows" if are_blocks_given else "shared out with KV memory"
