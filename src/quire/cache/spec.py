"""What one layer keeps of a token (`Page`) and for how long (`Retention`): together its KV spec,
and so what a block and a request cost.
"""

from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What a layer's attention can see of the tokens before it."""

    FULL = "full_attention"
    SLIDING = "sliding_window"
    LOCAL = "chunked_local"


@dataclass(frozen=True, slots=True)
class Page:
    """What one token takes in one layer, in elements: `num_kv_heads` keys of `k_width` and values
    of `v_width`.

    Latent attention (MLA) keeps one vector, of which the value is a part: its `v_width` is 0.
    `scale_bytes` is what each head's key, and each head's value, adds for its scale where the
    elements are quantised.
    """

    num_kv_heads: int
    k_width: int
    v_width: int
    element_bytes: int
    scale_bytes: int = 0

    @property
    def is_latent(self) -> bool:
        return self.v_width == 0

    @property
    def num_elements(self) -> int:
        return self.num_kv_heads * (self.k_width + self.v_width)

    @property
    def token_bytes(self) -> int:
        num_scales = self.num_kv_heads * (1 if self.is_latent else 2)
        return self.num_elements * self.element_bytes + num_scales * self.scale_bytes

    def shard(self, num_ways: int) -> "Page":
        """What each of `num_ways` tensor-parallel workers keeps of a token: its share of the KV
        heads. A latent page has nothing to split, and each keeps it whole.

        Raises ValueError unless every worker gets equally many heads, at least one.
        """
        if self.is_latent:
            return self
        possible = [
            ways for ways in range(1, self.num_kv_heads + 1) if not self.num_kv_heads % ways
        ]
        if num_ways not in possible:
            raise ValueError(
                f"{self.num_kv_heads} KV heads cannot be split {num_ways} ways, but "
                f"{', '.join(map(str, possible))} ways would do"
            )
        return replace(self, num_kv_heads=self.num_kv_heads // num_ways)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a token is needed. `reach` is the window of SLIDING, the chunk of LOCAL, in tokens;
    FULL needs every token to the end and has none.

    SLIDING: a query sees itself and the `reach - 1` positions before it. LOCAL: positions are cut
    into chunks of `reach`, and a query sees its own chunk up to itself.
    """

    kind: Kind = Kind.FULL
    reach: int | None = None

    def __post_init__(self) -> None:
        if self.kind is Kind.FULL:
            if self.reach is not None:
                raise ValueError(f"full attention has no reach, but {self.reach} is given")
        elif self.reach is None or self.reach < 1:
            raise ValueError(f"the reach of {self.kind} is {self.reach}, must be 1 or more")

    def first_needed(self, position: int) -> int:
        """The first position that a query at `position`, or any later one, can see."""
        if self.reach is None:
            return 0
        if self.kind is Kind.SLIDING:
            return max(0, position - self.reach + 1)
        return position // self.reach * self.reach

    def max_blocks(self, num_tokens: int, *, block_size: int, max_chunk_tokens: int) -> int:
        """The most blocks that a request of `num_tokens` ever holds, if no step computes more than
        `max_chunk_tokens` of it.

        Before a step a window keeps `reach - 1` tokens (a chunk at most as many) and the step adds
        its own; where they begin inside a block, one block more is touched. Never more than full
        attention takes.
        """
        whole = -(-num_tokens // block_size)
        if self.reach is None:
            return whole
        return min(whole, -(-(self.reach - 1 + max_chunk_tokens) // block_size) + 1)


FULL = Retention()


@dataclass(frozen=True, slots=True)
class KVSpec:
    """One attention layer. Layers with equal pages and retentions may share block tables."""

    page: Page
    retention: Retention = FULL

    def __post_init__(self) -> None:
        if self.page.is_latent and self.retention.kind is not Kind.FULL:
            raise ValueError(f"latent attention with {self.retention.kind} is not supported")
