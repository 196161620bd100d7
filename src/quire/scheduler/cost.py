"""The costs of bringing a preempted request back: by copying its blocks to the host and back, or by
computing its tokens again. The costs are learnt from the steps themselves.

Computing is linear, seconds = base + tokens x rate, fitted by least squares over recent steps:
tokens computed again ride in steps that run anyway, so that only the rate counts. Copying is a mean
over recent copies.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from quire.cache.block_copies import CopyTime
from quire.cache.swapping import RecomputeCost

DECAY = 0.98
"""The weight of older observations at each new one: some fifty steps count."""
MIN_SPREAD = 1e-3
"""The tokens' variance over their square below which no slope can be fitted."""


MIN_CHANCE = 0.02
"""The minimum assumed hit rate of evicted tokens."""


class PreemptionMode(StrEnum):
    """The methods of preemption; AUTO selects the cheaper one."""

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(slots=True)
class _Sums:
    """Weighted sums over (tokens, seconds) for a linear fit."""

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.weight = self.weight * DECAY + 1
        self.tokens = self.tokens * DECAY + tokens
        self.seconds = self.seconds * DECAY + seconds
        self.squares = self.squares * DECAY + tokens * tokens
        self.products = self.products * DECAY + tokens * seconds

    @property
    def ratio(self) -> float | None:
        return self.seconds / self.tokens if self.tokens else None

    @property
    def slope(self) -> float | None:
        """Seconds for each token; None where all steps are about as large, or larger ones take no
        longer.
        """
        if not self.weight:
            return None
        mean = self.tokens / self.weight
        variance = self.squares / self.weight - mean * mean
        if variance <= MIN_SPREAD * mean * mean:
            return None
        covariance = self.products / self.weight - mean * self.seconds / self.weight
        return covariance / variance if covariance > 0 else None

    @property
    def base(self) -> float | None:
        """The intercept, seconds at zero tokens; None without a slope."""
        slope = self.slope
        return None if slope is None else max(self.seconds - slope * self.tokens, 0) / self.weight


class CostModel:
    """Learns how long computing and copying take. `token_s` and `block_s` are the seconds to
    compute one more token, and to copy one block, `state_s` those to copy one state of recurrent
    layers; None until something was measured.
    """

    def __init__(self, mode: PreemptionMode) -> None:
        self._mode = mode
        self._steps = _Sums()
        self._copies = _Sums()
        self._state_copies = _Sums()

    @property
    def token_s(self) -> float | None:
        return self._steps.slope or self._steps.ratio

    @property
    def step_s(self) -> float | None:
        """Seconds of a step without its tokens; None if unknown."""
        return self._steps.base

    @property
    def block_s(self) -> float | None:
        return self._copies.ratio

    @property
    def state_s(self) -> float | None:
        return self._state_copies.ratio

    def observe_step(self, num_tokens: int, compute_s: float) -> None:
        """Learn from a step that computed `num_tokens` in `compute_s` seconds."""
        if num_tokens:
            self._steps.add(num_tokens, compute_s)

    def observe_copies(self, copied: CopyTime) -> None:
        """Learn from the copies of blocks and states to or from the host."""
        if copied.num_blocks:
            self._copies.add(copied.num_blocks, copied.copy_s)
        if copied.num_states:
            self._state_copies.add(copied.num_states, copied.state_copy_s)

    def prefers_swap(self, recompute_cost: RecomputeCost) -> bool:
        """Return whether swapping a preempted request out and in again takes less time than
        computing its tokens again. Where copying was never measured it is tried.
        """
        if self._mode != PreemptionMode.AUTO:
            return self._mode == PreemptionMode.SWAP
        return self._is_cheaper(recompute_cost, num_times=2)

    def prefers_host(self, recompute_cost: RecomputeCost, *, is_resumed: bool) -> bool:
        """Return whether blocks on the host are copied in instead of recomputed. A forced
        preemption mode does not affect the prefix hits of new requests."""
        if is_resumed and self._mode != PreemptionMode.AUTO:
            return self._mode == PreemptionMode.SWAP
        return self._is_cheaper(recompute_cost, num_times=1)

    def prefers_offload(self, block: RecomputeCost, hit_rate: float) -> bool:
        """Return whether evicted tokens are offloaded, given the share `hit_rate` of them that is
        requested again, instead of recomputed then."""
        block_s, token_s = self.block_s, self.token_s
        if block_s is None or token_s is None:
            return True
        chance = max(hit_rate, MIN_CHANCE)
        return block.num_blocks * block_s * (1 + chance) < block.num_tokens * token_s * chance

    def least_offload(self, hit_rate: float) -> int:
        """Return how many tokens an evicted snapshot of a state must save to be offloaded, given
        the share `hit_rate` of evicted tokens that is requested again; 0 until both copies and
        steps were measured."""
        state_s, token_s = self.state_s, self.token_s
        if state_s is None or not token_s:
            return 0
        chance = max(hit_rate, MIN_CHANCE)
        return ceil(state_s * (1 + chance) / (token_s * chance))

    def prefers_wait(self, num_tokens: int, num_steps: int) -> bool:
        """Return whether to start `num_steps` later with `num_tokens` fewer tokens to compute;
        without a measured step cost, any saving is enough."""
        token_s, step_s = self.token_s, self.step_s
        if token_s is None or step_s is None:
            return num_tokens > 0
        return num_tokens * token_s > num_steps * step_s

    def _is_cheaper(self, cost: RecomputeCost, *, num_times: int) -> bool:
        """Return whether copying so many times takes less time than to recompute, or was never
        measured."""
        token_s, copy_s = self.token_s, 0.0
        for num_copies, seconds in (
            (cost.num_blocks, self.block_s),
            (cost.num_states, self.state_s),
        ):
            if num_copies and seconds is None:
                return True
            copy_s += num_times * num_copies * (seconds or 0.0)
        return token_s is None or copy_s < cost.num_tokens * token_s
