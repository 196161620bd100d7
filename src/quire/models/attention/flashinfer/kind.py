"""The facts of layers that plans and kernels of FlashInfer depend on, and the layers it takes."""

from typing import NamedTuple

import torch

from quire.cache.spec import AttentionPattern, AttentionType
from quire.models.config import LayerFacts

HEAD_SIZES = (64, 128, 256)
"""Packages of precompiled kernels have these."""
DTYPES = (torch.float16, torch.bfloat16)
TENSOR_CORE_GROUP = 4
"""Query heads of one K/V head from which on chunks of one token are products of tensor cores too;
the other kernel has the smaller numbers of them, 1, 2 and 3, all."""


class Kind(NamedTuple):
    """Layers that one plan of a step serves: those of one KV cache group that are alike."""

    group: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    pattern: AttentionPattern
    softcap: float | None

    @property
    def window_left(self) -> int:
        """The positions before its own that a token sees, -1 for all."""
        return -1 if self.pattern.size is None else self.pattern.size - 1

    @property
    def uses_tensor_cores(self) -> bool:
        return self.num_heads // self.num_kv_heads >= TENSOR_CORE_GROUP

    @property
    def compiled(self) -> "Compiled":
        return Compiled(
            self.head_size,
            has_window=self.pattern.size is not None,
            has_cap=self.softcap is not None,
        )


class Compiled(NamedTuple):
    """The layers that kernels are compiled for, beside a dtype and a GPU."""

    head_size: int
    has_window: bool
    has_cap: bool

    def __str__(self) -> str:
        extras = [
            name for name, has in (("windows", self.has_window), ("soft caps", self.has_cap)) if has
        ]
        heads = f"heads of {self.head_size}"
        return f"{heads} with {' and '.join(extras)}" if extras else heads


def kind_of(layer: LayerFacts, group: int, num_heads: int) -> Kind:
    return Kind(
        group,
        num_heads,
        layer.num_kv_heads,
        layer.head_size,
        layer.scale,
        layer.pattern,
        layer.softcap,
    )


def compiled_of(layer: LayerFacts) -> Compiled:
    """Return what the kernels of a layer that is taken are compiled for."""
    return kind_of(layer, 0, layer.num_kv_heads).compiled


def why_not_layer(layer: LayerFacts) -> str | None:
    """Return what a layer has that FlashInfer is not asked to compute, or None if it is plain."""
    if layer.has_sinks:
        return "sinks"
    if layer.is_latent:
        return "latents"
    if layer.pattern.attention_type is AttentionType.CHUNKED:
        return "chunk-local attention"
    if layer.head_size != layer.v_head_size:
        return f"keys of {layer.head_size} and values of {layer.v_head_size} elements"
    if layer.head_size not in HEAD_SIZES:
        return f"heads of {layer.head_size}"
    return None
