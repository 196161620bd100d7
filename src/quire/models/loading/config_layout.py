"""The layout of K and V by the configuration alone, before any weight is read. It may be unknown,
but never larger than what the probe will measure: a model that fits must not be refused.
"""

import dataclasses
from collections.abc import Sequence

from quire.cache.layout import Layout, build_layout
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV
from quire.models.config import KVOptions
from quire.models.loading.support import DOUBTFUL_WINDOWS
from quire.models.recurrent.config_states import OTHER_LAYERS, has_known_states

HEAD_NAMES = ("num_attention_heads", "n_head", "num_heads")
KV_HEAD_NAMES = ("num_key_value_heads", "num_kv_heads", "n_head_kv", *HEAD_NAMES)
LAYER_NAMES = ("num_hidden_layers", "n_layer", "num_layers")
HIDDEN_SIZE_NAMES = ("hidden_size", "n_embd", "d_model")
WINDOW, FIRST = "sliding_window", "max_window_layers"
ALL_SLIDE = ("qwen3_moe",)
"""Model types that state a first layer with a window, and give every layer one."""
SIZE_FIELDS = {
    "sliding_attention": (AttentionType.SLIDING, WINDOW),
    "hybrid_sliding": (AttentionType.SLIDING, WINDOW),
    "chunked_attention": (AttentionType.CHUNKED, "attention_chunk_size"),
}
WINDOWED_HEADS = {"mimo_v2_flash": 2}
"""By model type how many times the stated K/V heads layers with a window have, whatever further
fields of their configuration state."""
PER_LAYER = ("gemma4_text", "gemma4_unified_text")
"""Model types whose K/V heads and head sizes are those of `per_layer_config`."""
UNKNOWN_LAYERS = frozenset(DOUBTFUL_WINDOWS)
"""Model types whose layers are not as their configuration states."""
WINDOWED_FIELDS = ("swa_head_dim", "swa_num_key_value_heads")
UNKNOWN_FIELDS = (
    *("global_head_dim", "num_global_key_value_heads", "block_configs", "multi_query"),
    *("is_encoder_decoder", "compress_ratios", "add_cross_attention"),
    *("attn_config", "kv_channels"),
)
"""Fields of models whose K and V this module does not know."""
OTHERWISE_KNOWN = frozenset({"zamba2"})
"""Model types with such fields, whose layers are nevertheless as their other fields state."""
BLOCK_TYPES = "layers_block_type"
"""The field that lists the kinds of layers, in models whose states are known or not at all."""


def layout_from_config(
    config: object, options: KVOptions, dtype_bytes: int, *, num_ways: int = 1
) -> Layout | None:
    """Return the layout of a model that computes in `dtype_bytes`, or None if it is not known.

    Its KV heads are split `num_ways`. Raises ValueError where they do not divide.
    """
    patterns, sources = _patterns(config), _sources(config)
    if patterns == ():
        return build_layout([])
    if _is_unknown(config) or patterns is None or sources is None:
        return None
    sizes = options.element_bytes(dtype_bytes)
    token_kvs = [_token_kv(config, each, *sizes) for each in _layer_configs(config, len(patterns))]
    specs: list[KVSpec | None] = []
    for index, (token_kv, pattern) in enumerate(zip(token_kvs, patterns, strict=True)):
        if token_kv is None or (token_kv.is_latent and pattern != FULL):
            return None
        if pattern != FULL:
            token_kv = _windowed(config, token_kv)
        specs.append(None if index in sources else KVSpec(token_kv.shard(num_ways), pattern))
    return build_layout(specs, hybrid=options.hybrid, sources=sources)


def _is_unknown(config: object) -> bool:
    """Return whether K and V are not as this module reads them."""
    model_type = getattr(config, "model_type", None)
    if model_type in UNKNOWN_LAYERS:
        return True
    if getattr(config, BLOCK_TYPES, None) and not has_known_states(config):
        return True
    unknown = UNKNOWN_FIELDS + (() if model_type in WINDOWED_HEADS else WINDOWED_FIELDS)
    if model_type not in PER_LAYER:
        unknown += ("is_heterogeneous",)
    has_unknown = any(getattr(config, name, None) for name in unknown)
    return has_unknown and model_type not in OTHERWISE_KNOWN


def _layer_configs(config: object, num_layers: int) -> list[object]:
    """Return the configuration that has the heads of each layer."""
    if not getattr(config, "is_heterogeneous", None):
        return [config] * num_layers
    by_layer: Sequence[object] = getattr(config, "per_layer_config", ())
    return [by_layer[index] for index in range(num_layers)]


def _windowed(config: object, token_kv: TokenKV) -> TokenKV:
    """Return K and V of one token in a layer with a window."""
    times = WINDOWED_HEADS.get(str(getattr(config, "model_type", None)), 1)
    return dataclasses.replace(token_kv, num_kv_heads=times * token_kv.num_kv_heads)


def _sources(config: object) -> dict[int, int] | None:
    """Return the layers that attend over the K and V of an earlier one, and that one's index; None
    where it cannot be told."""
    try:
        modes = getattr(config, "kv_sharing_modes", None)
    except ValueError:
        return None
    kinds = getattr(config, "layer_types", None)
    if not isinstance(modes, list) or not isinstance(kinds, list):
        return None if getattr(config, "num_kv_shared_layers", None) else {}
    stored = {kinds[index]: index for index, mode in enumerate(modes) if mode == "store"}
    reusing = [index for index, mode in enumerate(modes) if mode not in (None, "store")]
    if any(modes[index] != "reuse" or kinds[index] not in stored for index in reusing):
        return None
    return {index: stored[kinds[index]] for index in reusing}


def _token_kv(
    config: object, layer: object, element_bytes: int, scale_bytes: int
) -> TokenKV | None:
    """Return K and V of one token in a layer, whose configuration is `layer`, or None.

    Unless stated otherwise, keys and values have the head size, that is the hidden size divided by
    the number of heads, and as many heads as queries.
    """
    rank, rotated = _number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim")
    if rank and rotated:
        return TokenKV(1, rank + rotated, 0, element_bytes, scale_bytes)
    hidden, num_heads = _number(config, *HIDDEN_SIZE_NAMES), _number(layer, *HEAD_NAMES)
    head_dim = _number(layer, "head_dim")
    if head_dim is None and hidden and num_heads:
        head_dim = hidden // num_heads
    num_kv_heads = _number(layer, *(name for name in KV_HEAD_NAMES if _is_declared(config, name)))
    if not head_dim or not num_kv_heads or rank:
        return None
    v_head_size = _number(layer, "v_head_dim") or head_dim
    return TokenKV(num_kv_heads, head_dim, v_head_size, element_bytes, scale_bytes)


def _patterns(config: object) -> tuple[AttentionPattern, ...] | None:
    num_layers = _number(config, *LAYER_NAMES)
    has_stray_window = _number(config, WINDOW) and not _is_declared(config, WINDOW)
    if not num_layers or has_stray_window:
        return None
    listed = getattr(config, "layer_types", None)
    kinds = list(listed) if isinstance(listed, list | tuple) else _inferred(config, num_layers)
    if len(kinds) != num_layers:
        return None
    if has_known_states(config):
        kinds = [kind for kind in kinds if kind not in OTHER_LAYERS]
    found = [_pattern(config, kind) for kind in kinds]
    known = tuple(pattern for pattern in found if pattern is not None)
    return known if len(known) == len(kinds) else None


def _inferred(config: object, num_layers: int) -> list[str]:
    """Return the kinds of layers where the configuration lists none.

    A window is then every layer's; it may be switched off, or begin at a certain layer.
    """
    is_used = getattr(config, "use_sliding_window", None)
    if not _number(config, WINDOW) or is_used is False:
        return ["full_attention"] * num_layers
    begins = (
        is_used
        and _is_declared(config, FIRST)
        and getattr(config, "model_type", None) not in ALL_SLIDE
    )
    first = min(_number(config, FIRST) or 0, num_layers) if begins else 0
    return ["full_attention"] * first + ["sliding_attention"] * (num_layers - first)


def _pattern(config: object, kind: object) -> AttentionPattern | None:
    if kind in ("full_attention", "hybrid"):
        return FULL
    if not isinstance(kind, str) or kind not in SIZE_FIELDS:
        return None
    cache_kind, name = SIZE_FIELDS[kind]
    size = _number(config, name)
    return AttentionPattern(cache_kind, size) if size else FULL


def _number(config: object, *names: str) -> int | None:
    """Return the first of these fields that is stated, if it is one number for all layers."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value if isinstance(value, int) and not isinstance(value, bool) else None
    return None


def _is_declared(config: object, name: str) -> bool:
    """Return whether the configuration's class declares the field; others come from the file alone,
    and perhaps no code reads them."""
    if not dataclasses.is_dataclass(config):
        return True
    fields = {field.name for field in dataclasses.fields(config)}
    aliases = getattr(config, "attribute_map", None) or {}
    return aliases.get(name, name) in fields
