"""Tells the modules of a causal language model that is made of a decoder's parts alone: an
embedding, layers of attention and an MLP with norms around them, a norm and a head.

No model family is known by name: layers are told by the names of their norms, and what is made of
them is compared with the model (`module_replacement.py`).
"""

from collections.abc import Mapping

from torch import nn

from quire.models.layers.decoder import DecoderRotary
from quire.models.layers.frozen_rotary import rotary_kinds
from quire.models.layers.fused_layers import LayerNorms
from quire.models.native.decoder.fused import NormParams

MODEL_PARTS = {"model", "lm_head"}
BASE_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}
TEXT_PART = "language_model"
SUBLAYERS = {"self_attn", "mlp"}
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
)
"""The names of a layer's norms in the order of LayerNorms: those of Llama, Gemma 2, EXAONE 4
and VaultGemma, and of the families that took them over."""


def layer_parts(layer: nn.Module) -> dict[str, nn.Module]:
    """Return what a layer is made of, without dropout, which does nothing here."""
    children = layer.named_children()
    return {name: part for name, part in children if not isinstance(part, nn.Dropout)}


def norm_names(layer: nn.Module) -> tuple[str | None, ...] | None:
    """Return the entry of NORM_NAMES for a layer that has these norms, attention and an MLP, and
    nothing else; None for any other module."""
    found = layer_parts(layer).keys()
    for names in NORM_NAMES:
        if found == SUBLAYERS | {name for name in names if name is not None}:
            return names
    return None


def layer_norms(layer: nn.Module, known: Mapping[nn.Module, NormParams]) -> LayerNorms | None:
    """Return the norms of a decoder layer, or None if it is none or one is not `known`."""
    names, parts = norm_names(layer), layer_parts(layer)
    if names is None:
        return None
    norms = [None if name is None else known.get(parts[name]) for name in names]
    if any(name is not None and norm is None for name, norm in zip(names, norms, strict=True)):
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
    if base.keys() != BASE_PARTS or not isinstance(base["layers"], nn.ModuleList):
        return None
    return base


def has_decoder_parts(module: nn.Module) -> bool:
    """Return whether a module is made of a decoder's parts, and may be run as one."""
    base = decoder_base(module)
    if base is None:
        return False
    layers = list(base["layers"].children())
    if decoder_rotary(base["rotary_emb"], len(layers)) is None:
        return False
    return all(norm_names(layer) is not None for layer in layers)


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
