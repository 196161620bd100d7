"""What is known of a loaded model: measured by a probe where it can be, else read from its files.

Standard library only, so that every room may look at the facts without paying for torch.
"""

from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.layout import Layout, build_layout
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV

QUANTISED = ("fp8_e4m3", "int8")
ATTENTION_BACKENDS = ("auto", "cpu", "triton", "reference", "eager")
"""`auto`: the fastest that runs here. `cpu`: C++ kernels. `triton`: kernels for NVIDIA GPUs.
`reference`: torch's fused kernels where they can. `eager`: every softmax written out in float32."""
LINEAR_BACKENDS = ("auto", "torch")
"""`auto`: bfloat16 weights packed for the C++ kernel where it runs. `torch`: as they are."""
QUANTIZATIONS = ("none", "int8")
"""Of weights. `int8`: linear layers on a CPU, with a scale for each row."""
SCALE_BYTES = 2
"""A scale is a bfloat16: its rounding does not matter, its range does."""


class CheckpointError(Exception):
    """The files of a model are missing or unusable; the message says which and what to do."""


class UnsupportedModel(Exception):
    """A model that Quire would serve wrongly, refused by name and with the reason."""

    def __init__(self, model_type: str, why: str) -> None:
        super().__init__(f"{model_type} models are not supported: {why}")
        self.model_type = model_type
        self.why = why


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One attention layer as it called its attention function.

    A token sees the positions up to its own: all of them, or the last `window`, or those of its own
    chunk of `chunk` positions. Scores are scaled by `scale`, then capped to
    `softcap * tanh(score / softcap)`; sinks join the softmax's denominator alone. Latent: there is
    one vector of `k_width` for all heads, and the value is its first `v_width` elements.
    """

    index: int
    num_kv_heads: int
    k_width: int
    v_width: int
    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    is_latent: bool = False

    @property
    def pattern(self) -> AttentionPattern:
        if self.chunk is not None:
            return AttentionPattern(AttentionType.CHUNKED, self.chunk)
        return FULL if self.window is None else AttentionPattern(AttentionType.SLIDING, self.window)

    def kv_spec(self, element_bytes: int, scale_bytes: int = 0) -> KVSpec:
        v_width = 0 if self.is_latent else self.v_width
        token_kv = TokenKV(self.num_kv_heads, self.k_width, v_width, element_bytes, scale_bytes)
        return KVSpec(token_kv, self.pattern)


class KVSize(NamedTuple):
    """Blocks of the device, the null block among them, and blocks of the host to swap out to."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0


@dataclass(frozen=True, slots=True)
class KVOptions:
    """How K and V are kept and attended to. `dtype`: auto (as the model computes), fp8_e4m3 or
    int8, both with one scale for each token and head. `hybrid` false: one layer group that forgets
    nothing. `attention`: one of ATTENTION_BACKENDS.
    """

    dtype: str = "auto"
    hybrid: bool = True
    attention: str = "auto"

    @property
    def is_quantised(self) -> bool:
        return self.dtype in QUANTISED

    @property
    def is_eager(self) -> bool:
        return self.attention == "eager"

    def element_bytes(self, dtype_bytes: int) -> tuple[int, int]:
        """Of an element and of a scale, where the model computes in `dtype_bytes`."""
        return (1, SCALE_BYTES) if self.is_quantised else (dtype_bytes, 0)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`max_model_len`: the longest context the weights were made for, prompt and output together.
    `dtype`: float32, float16 or bfloat16, of the weights and, unless quantised, of K and V."""

    model_type: str
    layers: tuple[LayerFacts, ...]
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    dtype_bytes: int

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layout(self, options: KVOptions) -> Layout:
        """How the layers' K and V are grouped, and what they take."""
        sizes = options.element_bytes(self.dtype_bytes)
        specs = [layer.kv_spec(*sizes) for layer in self.layers]
        return build_layout(specs, hybrid=options.hybrid)
