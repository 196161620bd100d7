"""Shrinks a configuration: the same code with the same choices in every layer, in a few megabytes.

Whether packing mixes requests is a property of a family's code and configuration, not of its
weights: a small copy with random float32 weights shows it, and far below what it takes to matter.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from quire.models.hf import attention_modules

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MIN_LAYERS = 4
MAX_WEIGHTS = 2**24
"""A copy that is still larger is not made."""
NUM_HEADS, NUM_KV_HEADS, NUM_EXPERTS = 4, 2, 8
VISIBLE_TOKENS = 5
"""A window or chunk that the checks' tokens outgrow."""
SINK_STD, STD = 2.0, 2.0
LAYER_COUNTS = frozenset({"num_hidden_layers", "n_layer", "n_layers", "num_layers"})
HIDDEN_SIZES = ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim")
Fields = Mapping[str, object]
STATE_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"), NUM_HEADS),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 32),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 2),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 16),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank"), 4),
    **dict.fromkeys(("mamba_d_ssm", "attention_hidden_size"), 128),
    **dict.fromkeys(("linear_head_dim", "moe_latent_size"), 16),
    **dict.fromkeys(("attention_head_dim", "moe_shared_expert_intermediate_size"), 32),
    "linear_num_heads": NUM_HEADS,
    "num_experts_per_token": 2,
    "adapter_rank": 8,
    "expand": 1,
}
"""Sizes of models with recurrent layers. Where a field says how wide they are, it is twice the
hidden size, but for Mamba-2 (`expand`)."""
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), 256),
    **dict.fromkeys(HIDDEN_SIZES, 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "intermediate_size_mlp"), 96),
    **dict.fromkeys(("ffn_hidden_size", "expert_ffn_hidden_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), NUM_HEADS),
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), NUM_EXPERTS),
    **dict.fromkeys(("num_router_experts",), NUM_EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    "linear_num_key_heads": NUM_KV_HEADS,
    "linear_num_value_heads": NUM_HEADS,
    **STATE_SIZES,
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), VISIBLE_TOKENS),
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "qk_rope_head_dim": 8,
    "hidden_size_per_layer_input": 8,
}
"""The largest value of each field in a copy; a field that is smaller stays."""
KV_HEADS = frozenset({"num_key_value_heads", "num_kv_heads"})
TOKEN_IDS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
HEAD_SIZES = frozenset(
    {"head_dim", "global_head_dim", "kv_channels", "qk_rope_head_dim", "qk_nope_head_dim"}
    | {"v_head_dim"}
)


def small_copies(config: "PretrainedConfig", skeleton: nn.Module) -> "Iterator[PretrainedConfig]":
    """Yield configurations of small models with the same kinds of modules as `skeleton` has, which
    is built by `config`, the smallest first. Of a model of more than text they are of its text
    alone, where transformers has that as a model."""
    from quire.models.loading import pretrained

    text, kinds = config.get_text_config(), _kinds(skeleton)
    if text is not config:
        kinds = {type(part) for _, part in attention_modules(skeleton)} & kinds
    for keeps_heads in (False, True):
        try:
            with pretrained.quiet():
                small = _with(text, _sizes(text, keeps_heads=keeps_heads))
                module = _build(small, torch.device("meta"))
        except pretrained.LOADING_ERRORS:
            continue
        num_weights = sum(weight.numel() for weight in module.parameters())
        if num_weights > MAX_WEIGHTS:
            continue
        has_all = kinds == _kinds(module) if text is config else kinds <= _kinds(module)
        if has_all:
            yield small


def _kinds(module: nn.Module) -> set[type]:
    return {type(part) for part in module.modules()}


def build_random(config: "PretrainedConfig", seed: int) -> "PreTrainedModel":
    """Return a float32 model on the CPU whose random weights are large enough for every choice to
    matter."""
    from quire.models.loading import pretrained

    with torch.random.fork_rng(devices=[]), pretrained.quiet():
        torch.manual_seed(seed)
        module = _build(config, torch.device("cpu"))
        for name, weight in module.named_parameters():
            if "sink" in name:
                nn.init.normal_(weight, std=SINK_STD)
            elif weight.dim() > 1:
                nn.init.normal_(weight, std=STD / weight.shape[-1] ** 0.5)
            else:
                weight.data += 0.1 * torch.randn_like(weight)
    nn.Module.train(module, False)
    nn.Module.requires_grad_(module, False)
    return module


def _build(config: "PretrainedConfig", device: torch.device) -> "PreTrainedModel":
    from quire.models.loading import pretrained

    return pretrained.build_from_config(copy.deepcopy(config), device, torch.float32)


def _sizes(config: "PretrainedConfig", *, keeps_heads: bool) -> Mapping[str, int]:
    """Return SIZES, or if heads must keep their size, as for some rotary tables, sizes with
    NUM_HEADS such heads."""
    if not keeps_heads:
        return SIZES
    num_heads = getattr(config, "num_attention_heads", None) or NUM_HEADS
    head_size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    sizes = {name: size for name, size in SIZES.items() if name not in HEAD_SIZES}
    return {**sizes, **dict.fromkeys(HIDDEN_SIZES, NUM_HEADS * head_size)}


def _with(config: "PretrainedConfig", sizes: Mapping[str, int]) -> "PretrainedConfig":
    """Return the configuration with no more than `sizes`."""
    fields = config.to_dict()
    kinds = {"layer_types": getattr(config, "layer_types", None)}  # it may not be a field
    num_layers = min(config.num_hidden_layers, _num_layers(config.num_hidden_layers, fields, kinds))
    small = {
        name: _shrunken((name, value), sizes.get(name), config.num_hidden_layers, num_layers)
        for name, value in fields.items()
    }
    num_heads = getattr(config, "num_attention_heads", None)
    is_grouped = isinstance(num_heads, int) and num_heads > NUM_HEADS
    for name in KV_HEADS & fields.keys():
        number = fields[name]
        if is_grouped and isinstance(number, int):
            small[name] = NUM_HEADS if number == num_heads else min(number, NUM_KV_HEADS)
    return type(config).from_dict({**fields, **small})


def _shrunken(
    field: tuple[str, object], limit: int | None, old_layers: int, num_layers: int
) -> object:
    """Return the value of a field in the copy."""
    name, value = field
    if name in TOKEN_IDS:
        return None if value is None else 0
    if name in LAYER_COUNTS and value == old_layers:
        return num_layers
    if isinstance(value, list) and len(value) == old_layers:
        return value[:num_layers]
    if limit is None or not isinstance(value, int) or isinstance(value, bool):
        return value
    return min(value, limit)


def _num_layers(old_layers: int, *by_name: Fields) -> int:
    """Return the fewest layers that have each kind which the lists by layer know."""
    lists = [
        list(map(repr, value))
        for fields in by_name
        for value in fields.values()
        if isinstance(value, list) and len(value) == old_layers
    ]
    return max([MIN_LAYERS, *(each.index(kind) + 1 for each in lists for kind in set(each))])
