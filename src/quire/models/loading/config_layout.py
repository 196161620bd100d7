"""What a configuration alone tells of K and V, before any weight is read. It may say None, "cannot
be told", but never more than the probe will measure: a model that fits must not be refused.
"""

import dataclasses

from quire.cache.layout import Layout, build_layout
from quire.cache.spec import FULL, AttentionPattern, AttentionType, KVSpec, TokenKV
from quire.models.config import KVOptions
from quire.models.loading.support import DOUBTFUL_WINDOWS

HEAD_NAMES = ("num_attention_heads", "n_head", "num_heads")
KV_HEAD_NAMES = ("num_key_value_heads", "num_kv_heads", "n_head_kv", *HEAD_NAMES)
LAYER_NAMES = ("num_hidden_layers", "n_layer", "num_layers")
HIDDEN_SIZE_NAMES = ("hidden_size", "n_embd", "d_model")
WINDOW, FIRST = "sliding_window", "max_window_layers"
ALL_SLIDE = ("qwen3_moe",)
"""They state a first layer with a window, and give every layer one."""
SIZE_FIELDS = {
    "sliding_attention": (AttentionType.SLIDING, WINDOW),
    "chunked_attention": (AttentionType.CHUNKED, "attention_chunk_size"),
}
UNTOLD = frozenset({*DOUBTFUL_WINDOWS, "mimo_v2_flash"})
"""Model types whose layers are not as the configuration has them."""
BEYOND = (
    *("global_head_dim", "num_global_key_value_heads", "num_kv_shared_layers"),
    *("block_configs", "multi_query", "swa_head_dim", "swa_num_key_value_heads"),
    *("is_encoder_decoder", "layers_block_type", "compress_ratios", "add_cross_attention"),
    *("attn_config", "kv_channels", "is_heterogeneous"),
)
"""Where one of these is set, K and V are made in ways that are not told here."""


def layout_from_config(config: object, options: KVOptions, dtype_bytes: int) -> Layout | None:
    """The layout of a model that computes in `dtype_bytes`; None if the configuration does not tell
    it."""
    token_kv = _token_kv(config, *options.element_bytes(dtype_bytes))
    patterns = None if token_kv is None else _patterns(config)
    if token_kv is None or patterns is None:
        return None
    if token_kv.is_latent and set(patterns) != {FULL}:
        return None
    return build_layout([KVSpec(token_kv, pattern) for pattern in patterns], hybrid=options.hybrid)


def _token_kv(config: object, element_bytes: int, scale_bytes: int) -> TokenKV | None:
    """K and V of one token in any layer. Keys are as wide as a head; a head as its share of the
    hidden size; keys and values have as many heads as queries have: unless it is said otherwise.
    """
    if getattr(config, "model_type", None) in UNTOLD:
        return None
    if any(getattr(config, name, None) for name in BEYOND):
        return None
    rank, rotated = _number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim")
    if rank and rotated:
        return TokenKV(1, rank + rotated, 0, element_bytes, scale_bytes)
    hidden, num_heads = _number(config, *HIDDEN_SIZE_NAMES), _number(config, *HEAD_NAMES)
    head_dim = _number(config, "head_dim")
    if head_dim is None and hidden and num_heads:
        head_dim = hidden // num_heads
    num_kv_heads = _number(config, *(name for name in KV_HEAD_NAMES if _is_declared(config, name)))
    if not head_dim or not num_kv_heads or rank:
        return None
    v_head_size = _number(config, "v_head_dim") or head_dim
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
    found = [_pattern(config, kind) for kind in kinds]
    known = tuple(pattern for pattern in found if pattern is not None)
    return known if len(known) == num_layers else None


def _inferred(config: object, num_layers: int) -> list[str]:
    """A window without a list of layers is every layer's; it can be switched off, or begin at a
    layer where the model looks at that."""
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
    if kind == "full_attention":
        return FULL
    if not isinstance(kind, str) or kind not in SIZE_FIELDS:
        return None
    cache_kind, name = SIZE_FIELDS[kind]
    size = _number(config, name)
    return AttentionPattern(cache_kind, size) if size else FULL


def _number(config: object, *names: str) -> int | None:
    """The first of these that the configuration states, as one number for all layers."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value if isinstance(value, int) and not isinstance(value, bool) else None
    return None


def _is_declared(config: object, name: str) -> bool:
    """A name that the configuration's class does not know was put there by the file, and perhaps
    nothing looks at it."""
    if not dataclasses.is_dataclass(config):
        return True
    fields = {field.name for field in dataclasses.fields(config)}
    aliases = getattr(config, "attribute_map", None) or {}
    return aliases.get(name, name) in fields
