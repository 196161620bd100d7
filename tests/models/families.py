"""Tiny random checkpoints of real architectures, on disk as a user would have them."""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 101

DENSE: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
GPT: dict[str, object] = {
    "vocab_size": VOCAB,
    "n_positions": 128,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "initializer_range": 0.3,
}
WITHOUT_TOKENS: dict[str, object] = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


class Family(NamedTuple):
    model_type: str
    fields: dict[str, object]


SERVED = {
    "llama": Family("llama", DENSE),
    "qwen2": Family("qwen2", DENSE),
    "qwen2, windows in the upper layers": Family(
        "qwen2",
        {**DENSE, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": Family("qwen3", {**DENSE, "head_dim": 16}),
    "mistral": Family("mistral", {**DENSE, "sliding_window": None}),
    "mistral, window": Family("mistral", {**DENSE, "sliding_window": 11}),
    "phi3": Family("phi3", {**DENSE, "sliding_window": None}),
    "phi3, window": Family("phi3", {**DENSE, "sliding_window": 13}),
    "gpt_neox": Family("gpt_neox", {**DENSE, "num_key_value_heads": 6}),
    "gpt2": Family("gpt2", GPT),
    "gpt2, scaled by layer": Family("gpt2", {**GPT, "scale_attn_by_inverse_layer_idx": True}),
}

SMALL = {**DENSE, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
REFUSED = {
    "falcon": (Family("falcon", SMALL), "cannot be redirected"),
    "gptj": (Family("gptj", {**GPT, "n_head": 4, "rotary_dim": 4}), "cannot be redirected"),
    "bloom": (Family("bloom", {**GPT, "hidden_size": 48}), "do not call the attention function"),
    "mpt": (
        Family("mpt", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4}),
        "a first forward failed",
    ),
    "mamba": (Family("mamba", SMALL), "linear_attention layers keep no keys and values"),
    "minimax": (
        Family("minimax", {**SMALL, "num_local_experts": 2}),
        "linear_attention layers keep no keys and values",
    ),
    "gemma2": (Family("gemma2", {**SMALL, "head_dim": 8}), "attention soft cap, not supported yet"),
    "gpt_oss": (
        Family(
            "gpt_oss",
            {
                **SMALL,
                "head_dim": 8,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        "attention sinks, not supported yet",
    ),
    "llama4_text": (
        Family(
            "llama4_text",
            {
                **SMALL,
                "head_dim": 8,
                "num_local_experts": 2,
                "attention_chunk_size": 8,
                "intermediate_size_mlp": 48,
            },
        ),
        "chunked attention, not supported yet",
    ),
    "deepseek_v3": (
        Family(
            "deepseek_v3",
            {
                **SMALL,
                "num_key_value_heads": 4,
                "moe_intermediate_size": 16,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_group": 2,
                "topk_group": 1,
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
            },
        ),
        r"latent attention \(MLA\), not supported yet",
    ),
    "bert": (Family("bert", {**SMALL, "is_decoder": False}), "not causal"),
    "dynamic rope": (
        Family(
            "llama",
            {
                **SMALL,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            },
        ),
        "depend on the others",
    ),
}


def save_checkpoint(family: Family, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    config = AutoConfig.for_model(family.model_type, **{**WITHOUT_TOKENS, **family.fields})
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.to(dtype).save_pretrained(folder)
    return folder
