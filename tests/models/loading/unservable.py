"""Folders that hold something other than a causal language model in plain weights, as small as they
can be: what lies in them, and what the refusal says.
"""

import json
from pathlib import Path
from typing import NamedTuple

Fields = dict[str, object]

LLAMA: Fields = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "dtype": "float32",
}
EYE: Fields = {"hidden_size": 32, "num_hidden_layers": 1}
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"


class Unservable(NamedTuple):
    """`files` lie beside config.json; `config` None: there is none."""

    why: str
    config: Fields | None
    files: tuple[str, ...] = ("model.safetensors",)


def _llama(why: str, **fields: object) -> Unservable:
    return Unservable(why, {**LLAMA, **fields})


def _quantised(why: str, **fields: object) -> Unservable:
    return _llama(f"holds weights quantised with {why}, which", quantization_config=fields)


def _other(why: str, architecture: str, model_type: str, **fields: object) -> Unservable:
    return Unservable(
        why, {"architectures": [architecture], "model_type": model_type, "vocab_size": 9, **fields}
    )


SENSES = "holds a model of images or sound beside text"
ENCODER = "they are encoders, not causal"
JUDGE = "a reward or classification head"

UNSERVABLE = {
    "hqq": _quantised("hqq", quant_method="hqq"),
    "mlx": _llama(
        "quantised with MLX (7 bits), whose bits is 7", quantization={"group_size": 64, "bits": 7}
    ),
    "quantised within": Unservable(
        "quantised with hqq",
        {
            **LLAMA,
            "model_type": "gemma3",
            "text_config": {"quantization_config": {"quant_method": "hqq"}},
        },
    ),
    "gguf folder": Unservable(
        "give the path of one of a-q4.gguf, b-q8.gguf", None, ("a-q4.gguf", "b-q8.gguf")
    ),
    "gguf beside a configuration": Unservable(
        "model.gguf is no GGUF file that", LLAMA, ("model.gguf",)
    ),
    "lora": Unservable(
        "a LoRA adapter of some/base, not a whole", None, ("adapter_model.safetensors",)
    ),
    "lora beside a configuration": Unservable(
        "a LoRA adapter of some/base", LLAMA, ("adapter_model.safetensors",)
    ),
    "deberta": _other(ENCODER, "DebertaV2Model", "deberta-v2", hidden_size=32),
    "electra for masks": _other(ENCODER, "ElectraForMaskedLM", "electra"),
    "mpnet": _other(ENCODER, "MPNetModel", "mpnet"),
    "encoder of an unknown kind": _other(ENCODER, "PalimpsestForMaskedLM", "palimpsest"),
    "classifier": _llama(JUDGE, architectures=["LlamaForSequenceClassification"], num_labels=1),
    "bert classifier": _other(JUDGE, "BertForSequenceClassification", "bert"),
    "tokens are classified": _other(JUDGE, "Qwen2ForTokenClassification", "qwen2"),
    "reward model": _other(JUDGE, "Qwen2ForRewardModel", "qwen2"),
    "reward model of the past": _other(JUDGE, "InternLM2ForRewardModel", "internlm2"),
    "no head": _llama(
        "holds LlamaModel, a model without the head that turns its output into tokens",
        architectures=["LlamaModel"],
    ),
    "clip": _other(f"{SENSES} (CLIPModel)", "CLIPModel", "clip", vision_config=EYE),
    "llava": _other(
        f"{SENSES} (LlavaForConditionalGeneration)",
        "LlavaForConditionalGeneration",
        "llava",
        vision_config=EYE,
        text_config=LLAMA,
    ),
    "paligemma, without a text part": _other(
        f"{SENSES} (PaliGemmaForConditionalGeneration)",
        "PaliGemmaForConditionalGeneration",
        "paligemma",
        vision_config=EYE,
        **{name: value for name, value in LLAMA.items() if name.startswith(("h", "i", "n", "max"))},
    ),
    "no heads": _llama("num_attention_heads is 0, must be at least 1", num_attention_heads=0),
    "no K and V heads": _llama("num_key_value_heads is 0, must", num_key_value_heads=0),
    "no width": _llama("hidden_size is 0, must be at least 1", hidden_size=0),
    "no head width": _llama("head_dim is 0, must be at least 1", head_dim=0),
    "less than no layers": _llama("num_hidden_layers is -1, must", num_hidden_layers=-1),
    "no vocabulary": _llama("vocab_size is 0, must be at least 1", vocab_size=0),
    "no heads within": Unservable(
        "text_config.num_attention_heads is 0, must be at least 1",
        {"model_type": "gemma3", "text_config": {**LLAMA, "num_attention_heads": 0}},
    ),
}
"""By name: what a check without torch refuses."""

UNSERVABLE_LATER = {
    "vit": _other("vit models are not supported: transformers has no causal", "", "vit"),
    "paligemma without an eye": _other(
        "paligemma models are not supported: transformers has no causal", "", "paligemma"
    ),
    "a zero of another name": Unservable(
        "divided by a field that is 0, one of no_rope_layer_interval",
        {
            **LLAMA,
            "model_type": "smollm3",
            "architectures": ["SmolLM3ForCausalLM"],
            "bos_token_id": 0,
            "no_rope_layer_interval": 0,
        },
    ),
}
"""By name: what transformers is needed to see."""


def write_unservable(each: Unservable, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    if each.config is not None:
        (folder / "config.json").write_text(json.dumps(each.config))
    if any(name.startswith("adapter") for name in each.files):
        adapter = {"peft_type": "LORA", "base_model_name_or_path": "some/base"}
        (folder / "adapter_config.json").write_text(json.dumps(adapter))
    for name in each.files:
        (folder / name).write_bytes(NO_TENSORS if name.endswith("safetensors") else b"GGUF")
    return folder
