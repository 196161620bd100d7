"""The families that are proven: the data of the tests and of docs/models.md. Sizes are tiny, and
small enough for windows, chunks and caps to bite.

No torch here: the pages are made from it too.
"""

from typing import NamedTuple

REAL_WEIGHTS = {"llama": "SmolLM2-135M-Instruct", "gemma3_text": "Gemma 3 270M"}
"""By model type, the real checkpoint that tests/real runs; all others are proven on random ones."""
VOCAB = 101
Fields = dict[str, object]

TINY: Fields = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), VOCAB),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size"), 48),
    **dict.fromkeys(("word_embed_proj_dim",), 48),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("ffn_hidden_size", "expert_ffn_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_channels"), 12),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "num_router_experts"), 4
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    **dict.fromkeys(("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types")),
    **dict.fromkeys(("sliding_window", "bos_token_id", "eos_token_id", "pad_token_id")),
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "qk_rope_head_dim": 8,
    "hidden_size_per_layer_input": 8,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": False,
    "is_decoder": True,
}
"""Of these a family takes what its configuration knows."""

DENSE: Fields = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
DEFAULT_ROPE: Fields = {"rope_type": "default", "rope_theta": 10000.0}
PLAIN_ROPE: Fields = {"rope_parameters": DEFAULT_ROPE}
THREE_POSITIONS: Fields = {"rope_parameters": {**DEFAULT_ROPE, "mrope_section": [2, 2, 2]}}
"""Rotary positions in time, height and width; all three are equal for text."""
PARTIAL_POSITIONS: Fields = {
    "rope_parameters": {
        **DEFAULT_ROPE,
        "mrope_section": [1, 1, 1],
        "partial_rotary_factor": 0.5,
    }
}
YARN: Fields = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LONG_ROPE: Fields = {
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.3, 1.7],
        "long_factor": [2.0, 3.0, 5.0, 8.0],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        "original_max_position_embeddings": 128,
    },
}
FOUR: Fields = {"num_hidden_layers": 4}
WINDOW: Fields = {**FOUR, "sliding_window": 9}
MILD: Fields = {**WINDOW, "attention_multiplier": 0.25}
"""Where scores are not scaled down, rounding grows."""
BY_TURNS: Fields = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}
DELTA: Fields = {
    **FOUR,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
GATED_DELTA: Fields = {**DELTA, **PARTIAL_POSITIONS}
CONVOLUTIONS: Fields = {**FOUR, "layer_types": ["conv", "conv", "full_attention", "conv"]}
EQUAL_HEADS: Fields = {"num_key_value_heads": 4}
LATENT: Fields = {**EQUAL_HEADS, "head_dim": 8}
EVEN: Fields = {"head_dim": 12, "global_head_dim": 12}
NO_TOKENS: Fields = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


class Family(NamedTuple):
    """`attention`: what its layers do, held against what the probe measures."""

    model_type: str
    attention: str = ""
    fields: Fields = {}


SERVED = {
    # dense, full attention
    "llama": Family("llama", "full", DENSE),
    "qwen2": Family("qwen2", "full", DENSE),
    "qwen3": Family("qwen3", "full", {**DENSE, "head_dim": 16}),
    "mistral": Family("mistral", "full", DENSE),
    "phi3": Family("phi3", "full", DENSE),
    "gpt_neox": Family("gpt_neox", "full", EQUAL_HEADS),
    "gpt2": Family("gpt2", "full", {"n_layer": 3}),
    "gpt2, scaled by layer": Family(
        "gpt2", "full", {"n_layer": 3, "scale_attn_by_inverse_layer_idx": True}
    ),
    "olmo2": Family("olmo2", "full"),
    "apertus": Family("apertus", "full"),
    "arcee": Family("arcee", "full"),
    "bert": Family("bert", "full"),
    "bert-generation": Family("bert-generation", "full"),
    "biogpt": Family("biogpt", "full"),
    "bitnet": Family("bitnet", "full"),
    "cohere": Family("cohere", "full"),
    "ctrl": Family("ctrl", "full"),
    "electra": Family("electra", "full"),
    "ernie": Family("ernie", "full"),
    "ernie4_5": Family("ernie4_5", "full"),
    "gemma": Family("gemma", "full"),
    "glm": Family("glm", "full"),
    "glm4": Family("glm4", "full"),
    "gpt-sw3": Family("gpt-sw3", "full"),
    "gpt_bigcode": Family("gpt_bigcode", "full"),
    "granite": Family("granite", "full"),
    "helium": Family("helium", "full"),
    "hunyuan_v1_dense": Family("hunyuan_v1_dense", "full"),
    "hyperclovax": Family("hyperclovax", "full"),
    "internlm3": Family("internlm3", "full"),
    "iquestcoder": Family("iquestcoder", "full"),
    "jais2": Family("jais2", "full"),
    "moshi": Family("moshi", "full", {"sliding_window": 3000, "num_codebooks": 2}),
    "nanochat": Family("nanochat", "full"),
    "nemotron": Family("nemotron", "full"),
    "olmo": Family("olmo", "full"),
    "opt": Family("opt", "full"),
    "persimmon": Family("persimmon", "full", EQUAL_HEADS),
    "phi": Family("phi", "full"),
    "seed_oss": Family("seed_oss", "full"),
    "smollm3": Family("smollm3", "full"),
    "stablelm": Family("stablelm", "full", {"hidden_size": 64, "head_dim": 16}),
    "starcoder2": Family("starcoder2", "full"),
    # dense, windows
    "qwen2, windows in the upper layers": Family(
        "qwen2",
        "full, window",
        {**DENSE, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "mistral, window": Family("mistral", "window", {**DENSE, "sliding_window": 11}),
    "phi3, long rope": Family("phi3", "full", {**DENSE, **LONG_ROPE}),
    "phi3, window": Family("phi3", "window", {**DENSE, "sliding_window": 13}),
    "starcoder2, window": Family("starcoder2", "window", {"sliding_window": 9}),
    "ministral": Family("ministral", "window", {"sliding_window": 9}),
    "ministral3": Family(
        "ministral3",
        "full",
        {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}},
    ),
    "gemma2": Family("gemma2", "full, soft cap, window", {**WINDOW, "attn_logit_softcapping": 5.0}),
    "vaultgemma": Family(
        "vaultgemma", "full, soft cap, window", {**WINDOW, "attn_logit_softcapping": 5.0}
    ),
    "gemma3_text": Family("gemma3_text", "full, window", {**WINDOW, "num_hidden_layers": 6}),
    "gemma3n_text": Family(
        "gemma3n_text",
        "full, window",
        {**BY_TURNS, "laurel_rank": 4, "num_kv_shared_layers": 2},
    ),
    "gemma4_text": Family(
        "gemma4_text", "full, unequal layers, window", {**BY_TURNS, "global_head_dim": 24}
    ),
    "gemma4_text, layers that share K and V": Family(
        "gemma4_text", "full, window", {**BY_TURNS, **EVEN, "num_kv_shared_layers": 2}
    ),
    "gemma4_unified_text": Family(
        "gemma4_unified_text",
        "full, window",
        {**BY_TURNS, **EVEN, "hidden_size_per_layer_input": 0},
    ),
    "cohere2": Family("cohere2", "full, window", WINDOW),
    "cohere_compass_text": Family(
        "cohere_compass_text",
        "full, window",
        {
            **BY_TURNS,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 10000.0}
                for kind in ("full_attention", "sliding_attention")
            },
        },
    ),
    "cwm": Family(
        "cwm", "full, window", {**WINDOW, **PLAIN_ROPE, "bos_token_id": 1, "eos_token_id": 100}
    ),
    "exaone4": Family("exaone4", "full, window", WINDOW),
    "granite_swa": Family("granite_swa", "full, sinks, window", MILD),
    "modernbert-decoder": Family(
        "modernbert-decoder",
        "full, window",
        {**BY_TURNS, "local_attention": 18, **dict.fromkeys(NO_TOKENS, 1)},
    ),
    "olmo3": Family("olmo3", "full, window", WINDOW),
    # experts
    "mixtral": Family("mixtral", "full"),
    "mixtral, window": Family("mixtral", "window", {"sliding_window": 9}),
    "qwen2_moe": Family(
        "qwen2_moe", "full, window", {**WINDOW, "use_sliding_window": True, "max_window_layers": 3}
    ),
    "qwen3_moe": Family("qwen3_moe", "full"),
    "afmoe": Family("afmoe", "full, window", {**WINDOW, "global_attn_every_n_layers": 2}),
    "aria_text": Family("aria_text", "full"),
    "beam": Family("beam", "full, window", WINDOW),
    "cohere2_moe": Family("cohere2_moe", "full, window", WINDOW),
    "dbrx": Family(
        "dbrx",
        "full",
        {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "dots1": Family("dots1", "full, window", {**WINDOW, "max_window_layers": 1}),
    "ernie4_5_moe": Family("ernie4_5_moe", "full"),
    "exaone_moe": Family("exaone_moe", "full, window", WINDOW),
    "flex_olmo": Family("flex_olmo", "full"),
    "flint": Family("flint", "full, sinks, window", WINDOW),
    "glm4_moe": Family("glm4_moe", "full"),
    "gpt_oss": Family("gpt_oss", "full, sinks, window", {**WINDOW, **PLAIN_ROPE}),
    "granitemoe": Family("granitemoe", "full"),
    "granitemoe_swa": Family("granitemoe_swa", "full, sinks, window", MILD),
    "granitemoehybrid": Family(
        "granitemoehybrid", "full", {"mamba_n_heads": 4, "layer_types": ["attention"] * 2}
    ),
    "granitemoeshared": Family("granitemoeshared", "full"),
    "hunyuan_v1_moe": Family("hunyuan_v1_moe", "full"),
    "hy_v3": Family("hy_v3", "full"),
    "jetmoe": Family("jetmoe", "full"),
    "kolibri1": Family("kolibri1", "window", {"sliding_window": 9}),
    "laguna": Family("laguna", "full, window", BY_TURNS),
    "llama4_text": Family(
        "llama4_text", "chunk, full", {**FOUR, "attention_chunk_size": 16, "floor_scale": 8}
    ),
    "mellum": Family("mellum", "full, window", BY_TURNS),
    "mimo_v2_flash": Family("mimo_v2_flash", "full, sinks, unequal layers, wide V, window", WINDOW),
    "minimax_m2": Family("minimax_m2", "full"),
    "olmoe": Family("olmoe", "full"),
    "phimoe": Family("phimoe", "full"),
    "phimoe, long rope": Family("phimoe", "full", {**LONG_ROPE, "hidden_size": 32}),
    "phimoe, window": Family("phimoe", "window", {"sliding_window": 9}),
    "solar_open": Family("solar_open", "full"),
    # latent
    "deepseek_v2": Family("deepseek_v2", "latent", LATENT),
    "deepseek_v3": Family("deepseek_v3", "latent", LATENT),
    "deepseek_v3, queries whole, YaRN": Family(
        "deepseek_v3", "latent", {**LATENT, "q_lora_rank": None, "rope_parameters": YARN}
    ),
    "axk1": Family("axk1", "latent", LATENT),
    "glm4_moe_lite": Family("glm4_moe_lite", "latent", LATENT),
    "longcat_flash": Family("longcat_flash", "latent", {**LATENT, "num_layers": 1}),
    "minicpm3": Family("minicpm3", "latent", LATENT),
    "youtu": Family("youtu", "latent", LATENT),
    # states beside attention
    "qwen3_5_text": Family("qwen3_5_text", "full, state", GATED_DELTA),
    "qwen3_5_moe_text": Family("qwen3_5_moe_text", "full, state", GATED_DELTA),
    "qwen3_next": Family(
        "qwen3_next",
        "full, state",
        {
            **GATED_DELTA,
            "rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "olmo_hybrid": Family("olmo_hybrid", "full, state", DELTA),
    "lfm2": Family("lfm2", "full, state", CONVOLUTIONS),
    "lfm2_moe": Family(
        "lfm2_moe", "full, state", {**CONVOLUTIONS, "num_dense_layers": 1, "conv_bias": True}
    ),
    # with more beside the text
    "gemma3, text alone": Family("gemma3", "full, window", {"text_config": BY_TURNS}),
    "gemma4, text alone": Family(
        "gemma4",
        "full, window",
        {
            "text_config": {**BY_TURNS, **EVEN, "pad_token_id": 0},
            "audio_config": None,
            **dict.fromkeys(("image_token_id", "audio_token_id", "video_token_id"), 100),
        },
    ),
    "got_ocr2, text alone": Family("got_ocr2", "full", {"text_config": {}}),
    "llama4, text alone": Family(
        "llama4", "chunk, full", {"text_config": {**FOUR, "attention_chunk_size": 16}}
    ),
    "mistral3, text alone": Family(
        "mistral3",
        "full",
        {
            "text_config": {
                "model_type": "ministral3",
                "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5},
            }
        },
    ),
    "aya_vision, text alone": Family("aya_vision", "full, window", {"text_config": WINDOW}),
    "cohere2_vision, text alone": Family("cohere2_vision", "full, window", {"text_config": WINDOW}),
    "exaone4_5, text alone": Family(
        "exaone4_5", "full, window", {"text_config": {**WINDOW, "model_type": "exaone4"}}
    ),
    "kimi_k25, text alone": Family("kimi_k25", "latent", {"text_config": LATENT}),
    **{
        f"{name}, text alone": Family(name, "full", {"text_config": {}})
        for name in ("internvl", "smolvlm")
    },
    **{
        f"{name}, text alone": Family(name, "full", {"text_config": THREE_POSITIONS})
        for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm46v")
    },
    "glm4v_moe, text alone": Family("glm4v_moe", "full", {"text_config": PARTIAL_POSITIONS}),
    "qwen3_5, text alone": Family("qwen3_5", "full, state", {"text_config": GATED_DELTA}),
    "qwen3_5_moe, text alone": Family("qwen3_5_moe", "full, state", {"text_config": GATED_DELTA}),
}
"""By name. What follows a comma tells a variant."""

NEMOTRON_H: Fields = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
    "moe_shared_expert_intermediate_size": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
    "time_step_min": 1e-6,
}
"""A smaller limit of steps than any step: `generate` keeps to it in prompts alone."""
MAMBA: Fields = {"num_hidden_layers": 3, "state_size": 8, "time_step_rank": 3}
MAMBA_2: Fields = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 3,
}
ZAMBA_2: Fields = {
    "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
    "num_hidden_layers": 3,
    "initializer_range": 0.21,
    "num_key_value_heads": 4,
    "num_mem_blocks": 1,
    "n_mamba_heads": 4,
    "time_step_min": 1e-6,
    "mamba_ngroups": 2,
    "mamba_d_state": 8,
    "use_shared_attention_adapter": True,
    "adapter_rank": 4,
}
FALCON_H1: Fields = {
    **MAMBA_2,
    "mamba_d_ssm": 40,
    "ssm_in_multiplier": 0.8,
    "ssm_out_multiplier": 1.2,
    "ssm_multipliers": [1.1, 0.9, 1.2, 0.8, 1.3],
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 1.1,
    "key_multiplier": 0.7,
    "lm_head_multiplier": 0.6,
    "embedding_multiplier": 1.5,
    "mlp_multipliers": [0.9, 1.1],
}
STATE_SPACES = {
    "bamba": Family("bamba", "full, state", {**MAMBA_2, "attn_layer_indices": [1]}),
    "falcon_h1": Family("falcon_h1", "full, state", FALCON_H1),
    "falcon_h1, normed, then gated": Family(
        "falcon_h1", "full, state", {**FALCON_H1, "mamba_rms_norm": True}
    ),
    "falcon_h1, gated, then normed": Family(
        "falcon_h1",
        "full, state",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "falcon_mamba": Family("falcon_mamba", "state", MAMBA),
    "granitemoehybrid, Mamba-2": Family(
        "granitemoehybrid",
        "full, state",
        {**MAMBA_2, "layer_types": ["mamba", "attention", "mamba"]},
    ),
    "jamba": Family(
        "jamba",
        "full, state",
        {
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 3,
        },
    ),
    "kimi_linear": Family(
        "kimi_linear",
        "latent, state",
        {
            **LATENT,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "q_lora_rank": None,
            "num_experts": 4,
            "num_experts_per_token": 2,
            "linear_head_dim": 8,
            "linear_num_heads": 4,
        },
    ),
    "mamba": Family("mamba", "state", MAMBA),
    "mamba2": Family(
        "mamba2",
        "state",
        {
            "num_hidden_layers": 3,
            "hidden_size": 64,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 8,
        },
    ),
    "nemotron_h": Family(
        "nemotron_h",
        "full, state",
        {
            **NEMOTRON_H,
        },
    ),
    "zamba2": Family("zamba2", "full, state", ZAMBA_2),
    "zamba2, rotary positions": Family("zamba2", "full, state", {**ZAMBA_2, "use_mem_rope": True}),
}
"""Mamba, Mamba-2 and Kimi delta attention: some models have no attention."""
SERVED |= STATE_SPACES
