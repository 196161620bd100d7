"""Classifies a checkpoint by its folder and its config.json, without torch. An unsupported
checkpoint is refused in one sentence, with a remedy, before heavy imports and downloads."""

import re
from pathlib import Path

from quire.models.config import CheckpointError, UnsupportedModel
from quire.models.loading.gguf.place import is_gguf_folder
from quire.models.loading.published.place import (
    CONFIG,
    Config,
    as_object,
    language_parts,
    quantisation_of,
    read_object,
)

ADAPTER = "adapter_config.json"
SENTENCES = "modules.json"
"""The file by which sentence-transformers knows its checkpoints."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
CAUSAL_CLASS = "AutoModelForCausalLM"

TEXT_PARTS = frozenset(
    {"dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git"}
    | {"gemma4_unified_assistant", "got_ocr2", "llama4", "mllama", "moshi", "musicgen"}
    | {"moss_transcribe_diarize", "musicgen_melody", "phi4_multimodal", "qwen3_5", "qwen3_5_moe"}
    | {"qwen4_exp"}
    | {"aya_vision", "cohere2_vision", "exaone4_5", "glm46v", "glm4v", "glm4v_moe"}
    | {"internvl", "kimi_k25", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"}
    | {"qwen3_vl_moe", "smolvlm"}
)
"""Models of more than text whose language model is served: transformers loads it by itself, or the
whole, as which its weights are named."""
ENCODERS = frozenset(
    {"albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta"}
    | {"deberta-v2", "distilbert", "electra", "ernie", "esm", "esmc", "eurobert", "fnet", "funnel"}
    | {"gte", "ibert", "jina_embeddings_v3", "layoutlm", "longformer", "luke", "megatron-bert"}
    | {"mobilebert", "modernbert", "mpnet", "mra", "neomme", "nomic_bert", "nystromformer"}
    | {"rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert"}
    | {"tapas", "ultrabert", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso"}
)
"""Model types that are decoders only where `is_decoder` says so, or never."""
SERVED_ENCODERS = frozenset(
    {"bert", "camembert", "distilbert", "modernbert", "roberta", "xlm-roberta"}
)
"""The encoders whose embeddings are served."""
SCORERS = frozenset({"bert", "camembert", "distilbert", "roberta", "xlm-roberta"})
"""The encoders that are served with a head of one score, as cross-encoders."""
OTHER_SENSES = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower", "speech_config")
JUDGES = re.compile(
    r"For(Sequence|Token|Image|Audio|Video)Classification|ForQuestionAnswering|ForMultipleChoice"
    r"|Reward|ForScor"
)
HEADLESS = re.compile(r"(?<!LMHead)(?<!Heads)Model$")
SIZES = (
    *("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers"),
    *("num_attention_heads", "n_head", "num_heads", "head_dim", "vocab_size"),
    *("num_key_value_heads", "num_kv_heads", "n_head_kv"),
)
"""Fields with counts of at least one."""
INSTEAD = "Quire serves models that continue text: give one whose architecture ends in ForCausalLM"


def check_kind(folder: Path, *, trust_remote_code: bool) -> None:
    """Raise CheckpointError or UnsupportedModel for what is no checkpoint that Quire can serve."""
    check_has_config(folder)
    refusal = quantised_refusal(folder)
    if refusal is not None:
        raise CheckpointError(refusal)
    check_model_kind(folder, trust_remote_code=trust_remote_code)


def check_has_config(folder: Path) -> None:
    """Raise CheckpointError without a configuration."""
    if not (folder / CONFIG).is_file():
        raise CheckpointError(_without_config(folder))


def quantised_refusal(folder: Path) -> str | None:
    """Return why quantised weights are not read by their method alone; None for others. Raises
    CheckpointError."""
    quantisation = quantisation_of(folder)
    if quantisation is None or (quantisation.is_read and not is_encoder(folder)):
        return None
    return quantisation.refusal(folder, "which Quire does not read")


def check_model_kind(folder: Path, *, trust_remote_code: bool) -> None:
    """Raise CheckpointError or UnsupportedModel for a model that Quire cannot serve, whatever form
    its weights have."""
    config = read_object(folder / CONFIG)
    architecture = _architecture(config)
    if JUDGES.search(architecture) and not _is_scorer(config):
        raise CheckpointError(
            f"{folder} holds a model that judges texts and writes none ({architecture}: a reward "
            f"or classification head); {INSTEAD}"
        )
    if not (trust_remote_code and CAUSAL_CLASS in as_object(config.get("auto_map"))):
        _check_architecture(folder, config, architecture)
    _check_sizes(folder, config)


def is_encoder(folder: Path) -> bool:
    """Return whether a checkpoint, whose kind was checked, is an encoder: each of its tokens sees
    those behind it. Raises CheckpointError."""
    config = read_object(folder / CONFIG)
    return config.get("model_type") in SERVED_ENCODERS and _is_encoder(config)


def is_scorer(folder: Path) -> bool:
    """Return whether a checkpoint is a cross-encoder: it makes one score of two texts. Raises
    CheckpointError."""
    return _is_scorer(read_object(folder / CONFIG))


def has_head(folder: Path) -> bool:
    """Return whether a checkpoint has a head that turns states into tokens. Raises
    CheckpointError."""
    return HEADLESS.search(_architecture(read_object(folder / CONFIG))) is None


def check_weights(folder: Path) -> None:
    """Raise CheckpointError unless there are weights that Quire opens."""
    if is_gguf_folder(folder) or any(
        not file.name.startswith("adapter_") for file in folder.glob("*.safetensors")
    ):
        return
    other = _other_weights(folder)
    if other is not None:
        raise CheckpointError(other)
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if not pickles:
        raise CheckpointError(f"{folder} holds no weights: there is no *.safetensors file")
    raise CheckpointError(
        f"{folder} holds its weights only as pickles ({', '.join(pickles)}), which can run code "
        "when opened and are never loaded: convert them to safetensors first"
    )


def zero_fields(folder: Path) -> list[str]:
    """Return the counts of config.json that are 0, for whoever met a division by one of them."""
    return [
        f"{prefix}{name}"
        for prefix, part in language_parts(read_object(folder / CONFIG))
        for name, value in part.items()
        if type(value) is int and value == 0 and not name.endswith("_id")
    ]


def _without_config(folder: Path) -> str:
    return _other_weights(folder) or f"{folder} holds no config.json: it is not a model's folder"


def _other_weights(folder: Path) -> str | None:
    """Return a sentence about weights that are not a whole model in safetensors, if there are
    such."""
    if (folder / ADAPTER).is_file():
        base = read_object(folder / ADAPTER).get("base_model_name_or_path")
        of = f" of {base}" if isinstance(base, str) and base else ""
        return (
            f"{folder} holds a LoRA adapter{of}, not a whole model: merge it into its base model "
            "(peft: merge_and_unload, then save_pretrained) and serve that"
        )
    return None


def _architecture(config: Config) -> str:
    """Return the first architecture that is stated, or an empty string."""
    stated = config.get("architectures")
    return str(stated[0]) if isinstance(stated, list) and stated else ""


def _check_architecture(folder: Path, config: Config, architecture: str) -> None:
    model_type = str(config.get("model_type", ""))
    named = architecture or model_type
    senses = [name for name in OTHER_SENSES if config.get(name)]
    if senses and model_type not in TEXT_PARTS:
        raise CheckpointError(
            f"{folder} holds a model of images or sound beside text ({named}), which Quire does "
            f"not serve; {INSTEAD}"
        )
    if _is_encoder(config):
        if model_type in SERVED_ENCODERS:
            return
        raise UnsupportedModel(
            model_type or named,
            f"they are encoders, not causal: each token sees those behind it ({named}); {INSTEAD}",
        )
    if HEADLESS.search(architecture) and not (folder / SENTENCES).is_file():
        raise CheckpointError(
            f"{folder} holds {architecture}, a model without the head that turns its output into "
            f"tokens, and no {SENTENCES} that says how embeddings are made of it; {INSTEAD}"
        )


def _is_scorer(config: Config) -> bool:
    is_classifier = _architecture(config).endswith("ForSequenceClassification")
    num_labels = len(as_object(config.get("id2label"))) or config.get("num_labels")
    return is_classifier and config.get("model_type") in SCORERS and num_labels == 1


def _is_encoder(config: Config) -> bool:
    is_masked = _architecture(config).endswith("ForMaskedLM")
    return is_masked or (config.get("model_type") in ENCODERS and not config.get("is_decoder"))


def _check_sizes(folder: Path, config: Config) -> None:
    for prefix, part in language_parts(config):
        for name in SIZES:
            value = part.get(name)
            if type(value) is int and value < 1:
                raise CheckpointError(
                    f"{folder}: its configuration cannot be used: {prefix}{name} is {value}, must "
                    "be at least 1"
                )
