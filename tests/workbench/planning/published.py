"""Configurations as their makers published them, with what tells of sizes; and their bytes by hand,
from the shapes of the weights alone.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

BF16, F32, I64 = 2, 4, 8

LLAMA_3_8B: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_31_8B = {
    **LLAMA_3_8B,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
LLAMA_3_70B = {
    **LLAMA_3_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
QWEN3_30B_A3B: Mapping[str, object] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK_V3: Mapping[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""It is published in FP8, which is not read; its plan is that of the bfloat16 checkpoint that is
made of it."""
GEMMA_3_27B: Mapping[str, object] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}


class Published(NamedTuple):
    """A configuration, the weights and buffers in bytes, and K and V of a token in all layers."""

    config: Mapping[str, object]
    weight_bytes: int
    token_bytes: int


def rotary(size: int, kinds: int = 1) -> int:
    """The frequencies of a head, kept twice for each kind of layer."""
    return kinds * 2 * (size // 2) * F32


def llama(hidden: int, inner: int, layers: int) -> int:
    """Grouped queries, 8 KV heads of 128, and a head of its own."""
    attention = 2 * hidden * hidden + 2 * hidden * 8 * 128
    layer = attention + 3 * hidden * inner + 2 * hidden
    return BF16 * (2 * 128256 * hidden + layers * layer + hidden) + rotary(128)


def qwen3_moe() -> int:
    hidden, inner, experts = 2048, 768, 128
    attention = 2 * hidden * 32 * 128 + 2 * hidden * 4 * 128 + 2 * 128
    layer = attention + experts * hidden + experts * 3 * hidden * inner + 2 * hidden
    return BF16 * (2 * 151936 * hidden + 48 * layer + hidden) + rotary(128)


def deepseek_v3() -> int:
    hidden, heads, experts = 7168, 128, 256
    queries = hidden * 1536 + 1536 + 1536 * heads * (128 + 64)
    latents = hidden * (512 + 64) + 512 + 512 * heads * (128 + 128)
    layer = queries + latents + heads * 128 * hidden + 2 * hidden
    mixture = experts * hidden + (experts + 1) * 3 * hidden * 2048
    weights = 61 * layer + 3 * 3 * hidden * 18432 + 58 * mixture + 2 * 129280 * hidden + hidden
    return BF16 * weights + F32 * 58 * experts + rotary(64)


def gemma3() -> int:
    hidden, size = 5376, 128
    attention = 2 * hidden * 32 * size + 2 * hidden * 16 * size + 2 * size
    text = 262208 * hidden + 62 * (attention + 4 * hidden + 3 * hidden * 21504) + hidden
    seen, inner = 1152, 4304
    block = 4 * (seen * seen + seen) + 2 * seen * inner + inner + seen + 4 * seen
    vision = 3 * 14 * 14 * seen + seen + 4096 * seen + 27 * block + 2 * seen
    projector = seen * hidden + seen
    buffers = 4096 * I64 + BF16 + rotary(size, kinds=2)
    return BF16 * (text + vision + projector) + buffers


PUBLISHED: Mapping[str, Published] = {
    "llama-3-8b": Published(LLAMA_3_8B, llama(4096, 14336, 32), 32 * 2 * 8 * 128 * BF16),
    "llama-3-70b": Published(LLAMA_3_70B, llama(8192, 28672, 80), 80 * 2 * 8 * 128 * BF16),
    "qwen3-30b-a3b": Published(QWEN3_30B_A3B, qwen3_moe(), 48 * 2 * 4 * 128 * BF16),
    "deepseek-v3": Published(DEEPSEEK_V3, deepseek_v3(), 61 * (512 + 64) * BF16),
    # 52 windowed layers and 10 full ones lie in 16 groups of 4, two places of which stay empty
    "gemma-3-27b": Published(GEMMA_3_27B, gemma3(), (62 + 3) * 2 * 16 * 128 * BF16),
}


def write_config(folder: Path, config: Mapping[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder
