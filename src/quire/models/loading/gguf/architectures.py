"""A table of the architectures of GGUF files: which models of transformers they are, with the names
of their weights, and what llama.cpp's converter changed of these.

Source: llama.cpp's `conversion/*.py` and `gguf-py/gguf/constants.py`, and transformers'
configurations.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from quire.models.loading.gguf.experts import PARTS, Join, interleaved, stacked
from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.reading import shown
from quire.models.loading.gguf.rope import Rope, read_rope

Config = dict[str, object]
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
COMMON_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
"""Parts of a layer, as a file names them and as transformers does."""
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
ROUTED = {**PARTS, "ffn_gate_inp": "mlp.gate"}
SINKS = "self_attn.sinks"
"""The one parameter that has no name within its module."""
NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class Architecture(NamedTuple):
    """A model of transformers by its `model_type` and class.

    more: further fields of its configuration, which are read of the file.
    names: parts of a layer that are called otherwise than in COMMON_NAMES.
    is_permuted: the rows of queries and keys are in the order of GGML's rotary embedding.
    shifted_norms: norms are stored as 1 + w.
    join: makes the parameters of a layer's experts; None for a model without any.
    """

    model_type: str
    class_name: str
    more: Callable[[Fields, Config, Rope], Config]
    names: Mapping[str, str] = MappingProxyType({})
    is_permuted: bool = False
    shifted_norms: bool = False
    join: Join | None = None


def architecture_of(fields: Fields) -> Architecture:
    """Return the architecture of a file. Raises CheckpointError for one that is not served."""
    name = fields.text("general.architecture", None)
    if name is None:
        raise fields.refusal("it does not say its general.architecture")
    kind = fields.text("general.type", "model")
    if kind not in ("model", None):
        raise fields.refusal(f"it holds no model but a part of one ({shown(kind)})")
    found = ARCHITECTURES.get(name)
    num_experts = fields.whole(f"{name}.expert_count", 0)
    if found is not None and num_experts and found.join is None:
        found = MIXTURES.get(name)
        if found is None:
            raise fields.refusal(f"it has {num_experts:,} experts, {name} is read without")
    if found is None:
        raise fields.refusal(
            f"GGUF files of the architecture {shown(name)} are not read, only of "
            f"{', '.join(sorted(ARCHITECTURES))}: give the folder or hub id of the model that it "
            "was converted from"
        )
    return found


def build_config(fields: Fields) -> Config:
    """Return the content of the `config.json` of a file's model. Raises CheckpointError."""
    found = architecture_of(fields)
    prefix = f"{fields.text('general.architecture', '')}."
    shapes = {tensor.name: tensor.shape for tensor in fields.header.tensors}
    if EMBEDDING not in shapes:
        raise fields.refusal(f"it has no tensor {EMBEDDING}")
    num_layers = _whole(fields, f"{prefix}block_count")
    if num_layers > len(shapes):
        raise fields.refusal(f"it has {len(shapes):,} tensors for {num_layers:,} layers")
    num_heads = _whole(fields, f"{prefix}attention.head_count")
    width = _whole(fields, f"{prefix}embedding_length")
    rope = read_rope(fields, prefix)
    head_dim = fields.whole(f"{prefix}attention.key_length", None)
    config: Config = {
        "model_type": found.model_type,
        "architectures": [found.class_name],
        "vocab_size": shapes[EMBEDDING][0],
        "tie_word_embeddings": HEAD not in shapes,
        "max_position_embeddings": _whole(fields, f"{prefix}context_length"),
        "hidden_size": width,
        "intermediate_size": _whole(fields, f"{prefix}feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.whole(f"{prefix}attention.head_count_kv", num_heads),
        "head_dim": head_dim or width // max(num_heads, 1),
        "rms_norm_eps": fields.number(f"{prefix}attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": rope.parameters,
        "bos_token_id": fields.whole("tokenizer.ggml.bos_token_id", None),
        "eos_token_id": fields.whole("tokenizer.ggml.eos_token_id", None),
        "pad_token_id": fields.whole("tokenizer.ggml.padding_token_id", None),
    }
    return config | found.more(fields, config, rope)


def _whole(fields: Fields, key: str) -> int:
    found = fields.whole(key, None)
    if not found:
        raise fields.refusal(f"it has no {key} of at least 1")
    return found


def _has(fields: Fields, name: str) -> bool:
    return any(tensor.name == name for tensor in fields.header.tensors)


def _llama(fields: Fields, config: Config, rope: Rope) -> Config:
    return {
        "attention_bias": _has(fields, "blk.0.attn_q.bias"),
        "mlp_bias": _has(fields, "blk.0.ffn_down.bias"),
    }


def _plain(fields: Fields, config: Config, rope: Rope) -> Config:
    return {}


def _qwen3(fields: Fields, config: Config, rope: Rope) -> Config:
    return {"attention_bias": _has(fields, "blk.0.attn_q.bias")}


def _experts(fields: Fields, prefix: str, name: str) -> Config:
    """Return how many experts there are, under a name, and how many of them a token is given to."""
    count = _whole(fields, f"{prefix}.expert_count")
    used = _whole(fields, f"{prefix}.expert_used_count")
    if used > count:
        raise fields.refusal(f"{prefix}.expert_used_count is {used:,}, of {count:,} experts")
    return {name: count, "num_experts_per_tok": used}


def _mixtral(fields: Fields, config: Config, rope: Rope) -> Config:
    return _experts(fields, "llama", "num_local_experts") | {"sliding_window": None}


def _qwen3_moe(fields: Fields, config: Config, rope: Rope) -> Config:
    return {
        **_experts(fields, "qwen3moe", "num_experts"),
        "moe_intermediate_size": _whole(fields, "qwen3moe.expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": _has(fields, "blk.0.attn_q.bias"),
    }


def _olmoe(fields: Fields, config: Config, rope: Rope) -> Config:
    return _experts(fields, "olmoe", "num_experts") | {"norm_topk_prob": False, "clip_qkv": None}


def _gpt_oss(fields: Fields, config: Config, rope: Rope) -> Config:
    num_layers = int(str(config["num_hidden_layers"]))
    width = _whole(fields, "gpt-oss.expert_feed_forward_length")
    scaling = {"truncate": False} if rope.parameters.get("rope_type") == "yarn" else {}
    return {
        **_experts(fields, "gpt-oss", "num_local_experts"),
        "intermediate_size": width,
        "sliding_window": _whole(fields, "gpt-oss.attention.sliding_window"),
        "layer_types": [
            "full_attention" if i % 2 else "sliding_attention" for i in range(num_layers)
        ],
        "attention_bias": True,
        "rope_parameters": {**rope.parameters, **scaling},
    }


def _smollm3(fields: Fields, config: Config, rope: Rope) -> Config:
    """Every fourth layer knows no positions, in all models of this kind."""
    num_layers = int(str(config["num_hidden_layers"]))
    return {
        **_llama(fields, config, rope),
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(num_layers)],
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "layer_types": ["full_attention"] * num_layers,
    }


def _seed_oss(fields: Fields, config: Config, rope: Rope) -> Config:
    return {
        "attention_bias": _has(fields, "blk.0.attn_q.bias"),
        "attention_out_bias": _has(fields, "blk.0.attn_output.bias"),
    }


def _ernie(fields: Fields, config: Config, rope: Rope) -> Config:
    return {"use_bias": _has(fields, "blk.0.attn_q.bias")}


def _granite(fields: Fields, config: Config, rope: Rope) -> Config:
    scales = {
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    found = {name: fields.number(f"granite.{key}", None) for name, key in scales.items()}
    return _llama(fields, config, rope) | {k: v for k, v in found.items() if v is not None}


def _gemma(fields: Fields, config: Config, rope: Rope) -> Config:
    return {"hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(fields: Fields, config: Config, rope: Rope) -> Config:
    return _gemma(fields, config, rope) | {
        "attn_logit_softcapping": fields.number("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("gemma2.final_logit_softcapping", 30.0),
        "sliding_window": fields.whole("gemma2.attention.sliding_window", 4096),
        "query_pre_attn_scalar": _scaled_by(config, num_layers_of_largest=46),
    }


def _gemma3(fields: Fields, config: Config, rope: Rope) -> Config:
    window = fields.whole("gemma3.attention.sliding_window", None)
    num_layers = int(str(config["num_hidden_layers"]))
    pattern = fields.whole("gemma3.attention.sliding_window_pattern", 6) if window else 1
    of_windows = {
        "rope_type": "default",
        "rope_theta": fields.number("gemma3.rope.freq_base_swa", 10000.0),
    }
    return _gemma(fields, config, rope) | {
        "final_logit_softcapping": fields.number("gemma3.final_logit_softcapping", None),
        "sliding_window": window or config["max_position_embeddings"],
        "layer_types": [
            "full_attention" if (i + 1) % max(pattern, 1) == 0 else "sliding_attention"
            for i in range(num_layers)
        ],
        "query_pre_attn_scalar": _scaled_by(config, num_layers_of_largest=62),
        "rope_parameters": {"full_attention": rope.parameters, "sliding_attention": of_windows},
    }


def _scaled_by(config: Config, *, num_layers_of_largest: int) -> int:
    """Return what queries are divided by the root of: the size of a head, but that of a head of
    equal shares in the 27B models of Gemma, which no field tells apart."""
    if config["num_hidden_layers"] != num_layers_of_largest:
        return int(str(config["head_dim"]))
    return int(str(config["hidden_size"])) // int(str(config["num_attention_heads"]))


def _phi3(fields: Fields, config: Config, rope: Rope) -> Config:
    window = fields.whole("phi3.attention.sliding_window", 0)
    length = config["max_position_embeddings"]
    return {
        "sliding_window": window or None,
        "original_max_position_embeddings": rope.original_length or length,
    }


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture("llama", "LlamaForCausalLM", _llama, is_permuted=True),
        "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _plain),
        "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _qwen3, QK_NORMS),
        "qwen3moe": Architecture(
            "qwen3_moe", "Qwen3MoeForCausalLM", _qwen3_moe, QK_NORMS | ROUTED, join=stacked
        ),
        "olmoe": Architecture("olmoe", "OlmoeForCausalLM", _olmoe, QK_NORMS | ROUTED, join=stacked),
        "gpt-oss": Architecture(
            "gpt_oss",
            "GptOssForCausalLM",
            _gpt_oss,
            {
                **PARTS,
                "ffn_gate_inp": "mlp.router",
                "post_attention_norm": "post_attention_layernorm",
                "attn_sinks": SINKS,
            },
            join=interleaved,
        ),
        "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", _smollm3, is_permuted=True),
        "glm4": Architecture(
            "glm4",
            "Glm4ForCausalLM",
            _qwen3,
            {
                "ffn_up": "mlp.gate_up_proj",
                "post_attention_norm": "post_self_attn_layernorm",
                "post_ffw_norm": "post_mlp_layernorm",
            },
        ),
        "seed_oss": Architecture(
            "seed_oss",
            "SeedOssForCausalLM",
            _seed_oss,
            {"post_attention_norm": "post_attention_layernorm"},
        ),
        "ernie4_5": Architecture("ernie4_5", "Ernie4_5ForCausalLM", _ernie),
        "granite": Architecture("granite", "GraniteForCausalLM", _granite, is_permuted=True),
        "olmo2": Architecture(
            "olmo2",
            "Olmo2ForCausalLM",
            _plain,
            QK_NORMS | NORMS_BEHIND,
        ),
        "phi3": Architecture(
            "phi3",
            "Phi3ForCausalLM",
            _phi3,
            {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        ),
        "gemma": Architecture("gemma", "GemmaForCausalLM", _gemma, shifted_norms=True),
        "gemma2": Architecture(
            "gemma2",
            "Gemma2ForCausalLM",
            _gemma2,
            NORMS_BEHIND | {"ffn_norm": "pre_feedforward_layernorm"},
            shifted_norms=True,
        ),
        "gemma3": Architecture(
            "gemma3_text",
            "Gemma3ForCausalLM",
            _gemma3,
            QK_NORMS | NORMS_BEHIND | {"ffn_norm": "pre_feedforward_layernorm"},
            shifted_norms=True,
        ),
    }
)
MIXTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(
            "mixtral", "MixtralForCausalLM", _mixtral, ROUTED, is_permuted=True, join=stacked
        )
    }
)
"""Mixture-of-experts models whose files have the architecture name of the dense model."""
