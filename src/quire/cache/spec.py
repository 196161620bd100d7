"""A layer's KV spec is the size of one token's K and V (`TokenKV`) and how long a token is kept
(`AttentionPattern`), which give the bytes of a block and a request."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

STATE_ELEMENT_BYTES = 4
"""States are float32 whatever the model computes in: rounding them changes tokens."""


class AttentionType(StrEnum):
    """The kinds of attention, by the range of earlier tokens."""

    FULL = "full_attention"
    SLIDING = "sliding_window"
    CHUNKED = "chunked_local"


@dataclass(frozen=True, slots=True)
class TokenKV:
    """The elements that one token takes in one layer: `num_kv_heads` keys of `head_size` and values
    of `v_head_size`.

    Latent attention (MLA) keeps one vector, of which the value is a part: its `v_head_size` is 0.
    `scale_bytes` is the size of the scale of each head's key, and of its value, if the elements are
    quantized.
    """

    num_kv_heads: int
    head_size: int
    v_head_size: int
    element_bytes: int
    scale_bytes: int = 0

    @property
    def is_latent(self) -> bool:
        return self.v_head_size == 0

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """The bytes of a token in each tensor that holds a part of it: keys, values and the scales
        of both."""
        widths = (self.head_size,) if self.is_latent else (self.head_size, self.v_head_size)
        elements = tuple(self.num_kv_heads * width * self.element_bytes for width in widths)
        scales = (self.num_kv_heads * self.scale_bytes,) * len(widths)
        return elements + scales if self.scale_bytes else elements

    @property
    def token_bytes(self) -> int:
        return sum(self.part_bytes)

    def shard(self, num_ways: int) -> "TokenKV":
        """Return what each of `num_ways` tensor-parallel workers keeps of a token: its share of the
        KV heads. A latent vector has nothing to split, and each worker keeps it whole.

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
class AttentionPattern:
    """The earlier tokens that a layer's queries see, and so how long each token is needed.

    `size` is the window size of SLIDING and the chunk size of CHUNKED, in tokens; FULL needs every
    token to the end and has none. SLIDING: a query sees itself and the `size - 1` positions before
    it. CHUNKED: positions are cut into chunks of `size`, and a query sees its own chunk up to
    itself. Raises ValueError for a size that does not go with the type.
    """

    attention_type: AttentionType = AttentionType.FULL
    size: int | None = None

    def __post_init__(self) -> None:
        if self.attention_type is AttentionType.FULL:
            if self.size is not None:
                raise ValueError(
                    f"full attention has no window or chunk size, but {self.size} is given"
                )
        elif self.size is None or self.size < 1:
            raise ValueError(f"the size of {self.attention_type} is {self.size}, must be 1 or more")

    def first_needed(self, position: int) -> int:
        """Return the first position that a query at `position`, or any later one, can see."""
        if self.size is None:
            return 0
        if self.attention_type is AttentionType.SLIDING:
            return max(0, position - self.size + 1)
        return position // self.size * self.size

    def max_blocks(self, num_tokens: int, *, block_size: int, max_chunk_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` ever holds, if no step computes
        more than `max_chunk_tokens` of it.

        Before a step a window keeps `size - 1` tokens (a chunk at most as many) and the step adds
        its own; where they begin inside a block, one block more is touched. It is never more than
        full attention takes.
        """
        whole = -(-num_tokens // block_size)
        if self.size is None:
            return whole
        return min(whole, -(-(self.size - 1 + max_chunk_tokens) // block_size) + 1)


FULL = AttentionPattern()


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state of one recurrent layer: the shapes of its parts, in float32, such as the rows that
    a convolution still needs [channels, rows] and a matrix for each head [heads, rows, columns].
    """

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_elements(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * STATE_ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The KV cache of one attention layer. Layers of equal `token_kv` and `pattern` may share block
    tables. Raises ValueError for latent attention with a window or chunks.
    """

    token_kv: TokenKV
    pattern: AttentionPattern = FULL

    def __post_init__(self) -> None:
        if self.token_kv.is_latent and self.pattern.attention_type is not AttentionType.FULL:
            raise ValueError(
                f"latent attention with {self.pattern.attention_type} is not supported"
            )
