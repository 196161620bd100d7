"""Tells the modules of a causal language model that is made of a decoder's parts alone: an
embedding, layers of attention or a recurrent module and an MLP with norms around them, a norm and a
head.

No model family is known by name: layers are told by the names of their norms, and what is made of
them is compared with the model (`module_replacement.py`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from quire.models.layers.decoder import DecoderRotary
from quire.models.layers.frozen_rotary import rotary_kinds
from quire.models.layers.fused_layers import LayerNorms
from quire.models.native.decoder.fused import NormParams
from quire.models.recurrent.families.registry import family_of

MODEL_PARTS = {"model", "lm_head"}
BASE_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAST_NORMS = ("norm", "embedding_norm")
"""The names of the norm after the last layer: that of Llama and others, and of LFM2."""
TEXT_PART = "language_model"
ATTENTION = "self_attn"
MIXERS = (ATTENTION, "linear_attn", "conv")
"""The names of what mixes tokens in a layer: attention, a gated delta net, a short convolution."""
MLPS = ("mlp", "feed_forward")
NORM_NAMES: tuple[tuple[str | None, ...], ...] = (
    ("input_layernorm", None, "post_attention_layernorm", None),
    (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ("input_layernorm", None, "pre_feedforward_layernorm", None),
    ("operator_norm", None, "ffn_norm", None),
)
"""The names of a layer's norms in the order of LayerNorms: those of Llama, Gemma 2, EXAONE 4,
VaultGemma and LFM2, and of the families that took them over."""


class LayerNames(NamedTuple):
    """The names of what a layer is made of; `norms` are an entry of NORM_NAMES."""

    mixer: str
    mlp: str
    norms: tuple[str | None, ...]


def layer_parts(layer: nn.Module) -> dict[str, nn.Module]:
    """Return what a layer is made of, without dropout, which does nothing here."""
    children = layer.named_children()
    return {name: part for name, part in children if not isinstance(part, nn.Dropout)}


def layer_names(layer: nn.Module) -> LayerNames | None:
    """Return the names of a layer's parts where it has these norms, a mixer and an MLP, and nothing
    else; None for any other module."""
    found = layer_parts(layer).keys()
    mixers = [name for name in MIXERS if name in found]
    mlps = [name for name in MLPS if name in found]
    if len(mixers) != 1 or len(mlps) != 1:
        return None
    for names in NORM_NAMES:
        if found == {*mixers, *mlps, *(name for name in names if name is not None)}:
            return LayerNames(mixers[0], mlps[0], names)
    return None


def layer_norms(layer: nn.Module, known: Mapping[nn.Module, NormParams]) -> LayerNorms | None:
    """Return the norms of a decoder layer, or None if it is none or one is not `known`."""
    names, parts = layer_names(layer), layer_parts(layer)
    if names is None:
        return None
    norms = [None if name is None else known.get(parts[name]) for name in names.norms]
    pairs = zip(names.norms, norms, strict=True)
    if any(name is not None and norm is None for name, norm in pairs):
        return None
    return LayerNorms(*norms)


def decoder_base(module: nn.Module) -> dict[str, nn.Module] | None:
    """Return the parts of a decoder without its head, by name; for a model with images, those of
    its text part. None for other modules."""
    parts = dict(module.named_children())
    if parts.keys() != MODEL_PARTS:
        return None
    text = dict(parts["model"].named_children()).get(TEXT_PART, parts["model"])
    base = dict(text.named_children())
    base = {"norm" if name in LAST_NORMS else name: part for name, part in base.items()}
    if base.keys() != BASE_PARTS or not isinstance(base["layers"], nn.ModuleList):
        return None
    return base


def has_decoder_parts(module: nn.Module) -> bool:
    """Return whether a module is made of a decoder's parts, with what mixes tokens in each layer
    such that it may be run as one call."""
    base = decoder_base(module)
    if base is None:
        return False
    layers = list(base["layers"].children())
    if decoder_rotary(base["rotary_emb"], len(layers)) is None:
        return False
    return all(map(_has_native_mixer, layers))


def _has_native_mixer(layer: nn.Module) -> bool:
    names = layer_names(layer)
    if names is None:
        return False
    mixer = layer_parts(layer)[names.mixer]
    family = family_of(mixer)
    return names.mixer == ATTENTION if family is None else family.core(mixer) is not None


def decoder_rotary(module: nn.Module, num_layers: int) -> DecoderRotary | None:
    """Return the rotary embeddings of a decoder's layers, or None where the module does not tell
    the kind of each layer, or has none for it."""
    kinds = tuple(rotary_kinds(module))
    if kinds == (None,):
        return DecoderRotary(module, kinds, (0,) * num_layers)
    layer_types = getattr(getattr(module, "config", None), "layer_types", None) or ()
    if len(layer_types) != num_layers or not set(layer_types) <= set(kinds):
        return None
    used = tuple(kind for kind in kinds if kind in layer_types)
    return DecoderRotary(module, used, tuple(used.index(kind) for kind in layer_types))


def logit_cap(module: nn.Module) -> float | None:
    """Return the soft cap of the model's logits, cap * tanh(logits / cap), from its configuration;
    None without one."""
    config = getattr(module, "config", None)
    cap = getattr(config and config.get_text_config(), "final_logit_softcapping", None)
    return None if cap is None else float(cap)
