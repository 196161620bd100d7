"""Tiny random checkpoints of real architectures, on disk as a user would have them."""

from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from quire.models.config import LayerFacts, ModelFacts
from tests.models.families import TINY, Family, Fields

SINK_STD, MIN_STD, STD = 2.0, 0.2, 0.3
EYE = {"depth": 1, "num_heads": 2, "embed_dim": 16, "out_hidden_size": 48}
"""Sizes of the part that sees, which takes those that its configuration knows."""


def save_checkpoint(family: Family, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Its numbers are large enough for every choice to matter."""
    torch.manual_seed(3)
    config = tiny_config(family)
    model = model_class(config).from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sink" in name:
                nn.init.normal_(parameter, std=SINK_STD)
            elif parameter.dim() > 1 and parameter.std() < MIN_STD:
                nn.init.normal_(parameter, std=STD)
    model.to(dtype).save_pretrained(folder)
    return folder


def model_class(
    config: PretrainedConfig,
) -> type[AutoModelForCausalLM] | type[AutoModelForImageTextToText]:
    """The class that transformers has for the text of a model, be it alone or beside images."""
    is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if is_causal else AutoModelForImageTextToText


def tiny_config(family: Family) -> PretrainedConfig:
    usual = AutoConfig.for_model(family.model_type)
    fields = dict(family.fields)
    if "text_config" in fields:
        return AutoConfig.for_model(family.model_type, **_with_text(usual, fields))
    return AutoConfig.for_model(family.model_type, **{**_known(usual), **fields})


def _known(usual: PretrainedConfig) -> Fields:
    known = usual.to_dict()
    return {name: value for name, value in TINY.items() if name in known}


def _with_text(usual: PretrainedConfig, fields: Fields) -> Fields:
    """A model that can also see, with as little of an eye as can be."""
    text = {**_known(usual.text_config), **fields.pop("text_config")}  # type: ignore[dict-item]
    eye = {
        **dict.fromkeys(("hidden_size", "intermediate_size", "image_size"), 16),
        **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 16),
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "patch_size": 8,
    }
    known = usual.to_dict()["vision_config"] or {}
    eye |= {name: size for name, size in EYE.items() if name in known}
    return {"text_config": text, "vision_config": eye, "mm_tokens_per_image": 4, **fields}


def attention_of(facts: ModelFacts) -> str:
    """In the words of `Family.attention`."""
    traits = {trait for layer in facts.layers for trait in _traits(layer)}
    if (
        len({(layer.num_kv_heads, layer.head_size, layer.v_head_size) for layer in facts.layers})
        > 1
    ):
        traits.add("unequal layers")
    if facts.recurrent:
        traits.add("state")
    return ", ".join(sorted(traits))


def _traits(layer: LayerFacts) -> list[str]:
    if layer.is_latent:
        return ["latent"]
    seen = "chunk" if layer.chunk_size else "window" if layer.window_size else "full"
    wide = ["wide V"] if layer.head_size != layer.v_head_size else []
    capped = ["soft cap"] if layer.softcap else []
    return [seen, *capped, *(["sinks"] if layer.has_sinks else []), *wide]
