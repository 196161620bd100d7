"""Facts of a loaded model, measured by a probe if possible, otherwise read from its files.

This module needs only the standard library, so every package may import it without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from quire.cache.layout import Layout, build_layout
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, StateSpec, TokenKV
from quire.models.optimizations import Disabled, Optimization

SCALE_BYTES = 2
"""A scale is a bfloat16: its rounding does not matter, its range does."""

FORWARD_ERRORS = (
    *(AttributeError, IndexError, KeyError, NotImplementedError),
    *(RuntimeError, TypeError, ValueError),
)
"""Errors that the forward of a model raises which does not fit."""


class ModelDtype(StrEnum):
    """The number format that a model computes in. `AUTO`: as stored, but bfloat16 for float32 where
    the device multiplies it."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class KVCacheDtype(StrEnum):
    """The number format of K and V. `AUTO`: what the model computes in; the others are of one byte,
    with one scale for each token and head."""

    AUTO = "auto"
    FP8_E4M3 = "fp8_e4m3"
    INT8 = "int8"

    @property
    def is_quantised(self) -> bool:
        return self is not KVCacheDtype.AUTO


QUANTISED = tuple(dtype for dtype in KVCacheDtype if dtype.is_quantised)


class RegistryName(StrEnum):
    """A name of a registry, whose members are its lines.

    implementation: `module:name` of what is registered, empty for a name that stands for none. It
        is imported where it is needed, so that this module goes without torch.
    help: what the name chooses, in words, without a full stop.
    """

    implementation: str
    help: str

    def __new__(cls, value: str, implementation: str, help: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.implementation = implementation
        member.help = help
        return member

    @classmethod
    def described(cls) -> str:
        """Return a sentence for each name that has words."""
        return " ".join(f"`{each}`: {each.help}." for each in cls if each.help)


class AttentionBackendName(RegistryName):
    """The registry of attention backends (`attention/backend.py`), in the order in which `auto`
    tries them."""

    AUTO = "auto", "", "the fastest available"
    CPU = "cpu", "quire.models.attention.cpu:CPU", "C++ kernels, for float32 and bfloat16"
    TRITON = (
        "triton",
        "quire.models.attention.triton.registration:TRITON",
        "Triton kernels, on NVIDIA GPUs from compute capability 8.0 on",
    )
    REFERENCE = (
        "reference",
        "quire.models.attention.reference:REFERENCE",
        "PyTorch's fused kernels",
    )
    EAGER = (
        "eager",
        "quire.models.attention.reference:EAGER",
        "explicit softmax in float32, slow, for comparison",
    )


class LayerFeature(StrEnum):
    """The features of some layers' attention, in the words of a refusal: a backend runs where it
    computes all that the layers need."""

    SOFTCAP = "soft caps"
    SINKS = "sinks"
    LATENT = "latents"


class CUDAGraphMode(StrEnum):
    """The steps that are replayed from CUDA graphs (vLLM: cudagraph_mode).

    `FULL_DECODE_ONLY`: steps of one token a request, whole. `PIECEWISE`: all steps, in pieces with
    attention launched between them. `FULL_AND_PIECEWISE`: steps of one token a request whole, and
    the others in pieces.
    """

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL_DECODE_ONLY = "full_decode_only"
    FULL_AND_PIECEWISE = "full_and_piecewise"

    @property
    def has_full(self) -> bool:
        return self in (CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE)

    @property
    def has_pieces(self) -> bool:
        return self in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL_AND_PIECEWISE)


class LinearBackend(StrEnum):
    """The ways in which linear layers multiply. `AUTO`: on a CPU bfloat16 weights packed for the
    C++ kernels where they run, on a GPU merged projections. `TORCH`: weights as they are."""

    AUTO = "auto"
    TORCH = "torch"


class Quantization(RegistryName):
    """The registry of weight formats (`loading/formats/weight_format.py`). `NONE`: as stored."""

    NONE = "none", "", ""
    INT8 = (
        "int8",
        "quire.models.loading.formats.int8:INT8",
        "on a CPU, linear layers and a tied embedding have weights of one byte with a scale for "
        "each row, multiplied as bytes if there is AVX-512 VNNI, except for the 16 columns with "
        "the largest activations: less memory, faster, a slightly different text",
    )
    INT4 = (
        "int4",
        "quire.models.loading.formats.int4:INT4",
        "four bits with a scale and an offset for each 32 columns of a row, and heads in int8: "
        "still less memory, a larger difference",
    )


class CheckpointError(Exception):
    """The files of a model are missing or unusable; the message says which and what to do."""


class UnsupportedModel(Exception):
    """A model that Quire would serve wrongly, refused by name and with the reason."""

    def __init__(self, model_type: str, why: str) -> None:
        super().__init__(f"{model_type} models are not supported: {why}")
        self.model_type = model_type
        self.why = why


class FailedCheck(UnsupportedModel):
    """A model whose answers would be wrong here, by a check at load: `why` has the finding with the
    numbers, `advice` the remedy."""

    def __init__(self, model_type: str, why: str, advice: str) -> None:
        super().__init__(model_type, why)
        self.advice = advice

    def __str__(self) -> str:
        return (
            f"this {self.model_type} model is not served, because a check found that its answers "
            f"would be wrong: {self.why}. {self.advice}"
        )


class NotDivisible(UnsupportedModel):
    """A model that is served, but not by as many ranks."""

    def __init__(self, model_type: str, num_ranks: int, why: str) -> None:
        super().__init__(model_type, why)
        self.num_ranks = num_ranks

    def __str__(self) -> str:
        return f"{self.model_type} models are not served by {self.num_ranks} ranks: {self.why}"


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One attention layer, as it called its attention function.

    index: its place among the layers with attention, and that of its K and V.
    head_size, v_head_size: elements of a key and of a value, for one head and token.
    window_size, chunk_size: a token sees the positions up to its own: all of them, or the last
        `window_size`, or those of its own chunk of `chunk_size` positions.
    scale, softcap: scores are scaled by `scale`, then capped to `softcap * tanh(score / softcap)`.
    has_sinks: attention sinks join the softmax's denominator alone.
    is_latent: all heads share one vector of `head_size`, and the value is its first `v_head_size`
        elements (MLA, arXiv 2405.04434).
    kv_source: the index of the earlier layer whose K and V it attends over; None for its own.
    """

    index: int
    num_kv_heads: int
    head_size: int
    v_head_size: int
    scale: float
    window_size: int | None = None
    chunk_size: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    is_latent: bool = False
    kv_source: int | None = None

    @property
    def shares_kv(self) -> bool:
        """Return whether the layer attends over the K and V of another, and keeps none."""
        return self.kv_source is not None

    @property
    def features(self) -> frozenset[LayerFeature]:
        """The features that the layer's attention needs."""
        needs = {
            LayerFeature.SOFTCAP: self.softcap is not None,
            LayerFeature.SINKS: self.has_sinks,
            LayerFeature.LATENT: self.is_latent,
        }
        return frozenset(feature for feature, is_needed in needs.items() if is_needed)

    @property
    def pattern(self) -> AttentionPattern:
        if self.chunk_size is not None:
            return AttentionPattern(AttentionType.CHUNKED, self.chunk_size)
        return (
            FULL
            if self.window_size is None
            else AttentionPattern(AttentionType.SLIDING, self.window_size)
        )

    def kv_spec(self, element_bytes: int, scale_bytes: int = 0) -> KVSpec:
        v_head_size = 0 if self.is_latent else self.v_head_size
        sizes = (self.head_size, v_head_size, element_bytes, scale_bytes)
        token_kv = TokenKV(self.num_kv_heads, *sizes)
        return KVSpec(token_kv, self.pattern)


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A recurrent layer, by its index among all layers, and the state that it keeps."""

    index: int
    state: StateSpec


class KVSize(NamedTuple):
    """The size of a KV store, in blocks of `block_size` tokens.

    `num_blocks` are the device's, the null block among them; `num_host_blocks` are the host's, for
    requests that are swapped out. `num_states` are those of recurrent layers, the null state among
    them; 0 without such layers. `num_host_states` are the host's.
    """

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    num_states: int = 0
    num_host_states: int = 0


@dataclass(frozen=True, slots=True)
class KVOptions:
    """Options of how K and V are stored and attended to.

    hybrid: false means one KV cache group for all layers, which keeps every token.
    disabled: the optimisations that are switched off.
    """

    dtype: KVCacheDtype = KVCacheDtype.AUTO
    hybrid: bool = True
    attention: AttentionBackendName = AttentionBackendName.AUTO
    disabled: Disabled = ()

    @property
    def huge_pages(self) -> bool:
        """Whether K and V use huge pages, if the host has them."""
        return Optimization.HUGE_PAGES not in self.disabled

    @property
    def is_quantised(self) -> bool:
        return self.dtype.is_quantised

    def element_bytes(self, dtype_bytes: int) -> tuple[int, int]:
        """Return the bytes of an element and of a scale; the model computes in `dtype_bytes`."""
        return (1, SCALE_BYTES) if self.is_quantised else (dtype_bytes, 0)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a loaded model.

    max_model_len: the longest context that the weights were made for, prompt and output together.
    dtype: float32, float16 or bfloat16, of the weights and, unless quantised, of K and V.
    hidden_size: elements of a state that the head reads; 0 where the model shows none.
    recurrent: the recurrent layers, in their order. `layers` are those with attention.
    """

    model_type: str
    layers: tuple[LayerFacts, ...]
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    dtype_bytes: int
    hidden_size: int = 0
    recurrent: tuple[RecurrentLayer, ...] = ()

    @property
    def state_bytes(self) -> int:
        """The bytes of one state, over all recurrent layers."""
        return sum(layer.state.num_bytes for layer in self.recurrent)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layout(self, options: KVOptions) -> Layout:
        """Return the layer groups of K and V, and the bytes of a block."""
        return layout_of(self.layers, options, self.dtype_bytes)


def layout_of(layers: Sequence[LayerFacts], options: KVOptions, dtype_bytes: int) -> Layout:
    """Return the layer groups of layers that compute in `dtype_bytes`; they are known by the
    index of each layer."""
    sizes = options.element_bytes(dtype_bytes)
    specs: list[KVSpec | None] = [None] * (1 + max((layer.index for layer in layers), default=-1))
    for layer in layers:
        if not layer.shares_kv:
            specs[layer.index] = layer.kv_spec(*sizes)
    sources = {layer.index: layer.kv_source for layer in layers if layer.kv_source is not None}
    return build_layout(specs, hybrid=options.hybrid, sources=sources)
