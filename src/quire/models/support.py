"""What a configuration tells before any weight is read: the context length, and reasons to refuse.

A feature that the attention backends lack would not fail but give wrong text: so it is refused.
"""

from collections.abc import Mapping

from quire.models.config import UnsupportedModel

LENGTH_NAMES = ("max_position_embeddings", "max_sequence_length", "seq_length", "max_seq_len")
PAGED_LAYERS = frozenset({"full_attention", "sliding_attention"})


def refuse_unsupported(config: object) -> None:
    model_type = str(getattr(config, "model_type", "unnamed"))
    for why in _reasons(config):
        raise UnsupportedModel(model_type, why)


def _reasons(config: object) -> list[str]:
    kinds = set(getattr(config, "layer_types", None) or ()) - PAGED_LAYERS
    reasons = []
    if getattr(config, "is_encoder_decoder", False):
        reasons.append("they have an encoder beside the decoder")
    if getattr(config, "quantization_config", None) is not None:
        reasons.append("the checkpoint is quantised, which is not supported yet")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        reasons.append("they need an attention soft cap, not supported yet")
    if getattr(config, "kv_lora_rank", None):
        reasons.append("they need latent attention (MLA), not supported yet")
    if "chunked_attention" in kinds:
        reasons.append("they need chunked attention, not supported yet")
    if kinds - {"chunked_attention"}:
        reasons.append(f"their {', '.join(sorted(kinds))} layers keep no keys and values to page")
    if _rope(config).get("rope_type") == "dynamic":
        reasons.append("dynamic RoPE scaling makes one request's output depend on the others'")
    return reasons


def max_model_len(config: object) -> int:
    """The longest context the positions were made for, RoPE scaling counted.

    LongRoPE switches its frequencies for the whole batch once any position passes the original
    length, which would make requests depend on each other: so it ends there.
    """
    length = _stated_length(config)
    rope = _rope(config)
    kind, factor = rope.get("rope_type"), rope.get("factor")
    original = rope.get("original_max_position_embeddings")
    if kind == "longrope" and isinstance(original, int):
        return min(length, original)
    if kind == "yarn" and isinstance(original, int) and isinstance(factor, int | float):
        return max(length, int(original * factor))
    if kind == "linear" and isinstance(factor, int | float):
        return int(length * factor)
    return length


def _stated_length(config: object) -> int:
    for name in LENGTH_NAMES:
        length = getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    model_type = str(getattr(config, "model_type", "unnamed"))
    raise UnsupportedModel(model_type, "the configuration states no context length")


def _rope(config: object) -> Mapping[str, object]:
    """The RoPE parameters, where all layers share them; those given by kind of layer are final."""
    rope = getattr(config, "rope_parameters", None)
    return rope if isinstance(rope, dict) and "rope_type" in rope else {}
