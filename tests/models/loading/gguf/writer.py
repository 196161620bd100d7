"""Writes GGUF files of models of transformers by the library `gguf`, as llama.cpp's converter does:
its names, its order of rotated rows, and norms as 1 + w."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from quire.models.config import CheckpointError
from quire.models.loading.gguf.fields import Fields
from quire.models.loading.gguf.header import read_header

Kind = gguf.GGMLQuantizationType
Scalar = bool | int | float | str
PERMUTED = {"llama", "granite", "smollm3"}
SHIFTED = {"gemma", "gemma2", "gemma3"}


class Vocabulary(NamedTuple):
    """The tokenizer of a file: `more` are fields by their names behind `tokenizer.ggml.`."""

    model: str
    tokens: Sequence[str]
    more: Mapping[str, Scalar | Sequence[int] | Sequence[float] | Sequence[str]]


def letters(size: int) -> Vocabulary:
    """A byte-level vocabulary of single letters, and of tokens that no text has."""
    usual = [chr(code) for code in range(33, 127)]
    tokens = [*usual, *(f"<{i}>" for i in range(size - len(usual)))][:size]
    return Vocabulary("gpt2", tokens, {"pre": "gpt-2", "merges": ["a b"][:0]})


def write_model(
    folder: Path,
    file: Path,
    architecture: str,
    *,
    kind: Kind | Mapping[str, Kind] = gguf.GGMLQuantizationType.F32,
    more: Mapping[str, Scalar] | None = None,
) -> None:
    """Write the model of a folder, its matrices in blocks of `kind`, or of the first whose key is
    in their name; `more` are fields of the architecture beside the usual ones."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    add_fields(writer, architecture, config, more or {})
    add_vocabulary(writer, letters(config.vocab_size))
    number = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    kinds = kind if isinstance(kind, Mapping) else {"": kind}
    for whole, parameter in model.named_parameters():
        for name, part in _taken_apart(whole, parameter.detach().float(), architecture):
            values = _converted(name, part, architecture, config).contiguous().numpy()
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            own = next(each for part_name, each in kinds.items() if part_name in found)
            is_bias = values.ndim == 1 or found.endswith(".bias")
            is_plain = own is gguf.GGMLQuantizationType.F32 or is_bias
            data = values if is_plain else gguf.quantize(values, own)
            writer.add_tensor(found, data, raw_dtype=None if is_plain else own)
    for length in ("long", "short"):
        factors = config.rope_parameters.get(f"{length}_factor")
        if factors is not None:
            tensor = np.array(factors, np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", tensor)
    write(writer)


def write(writer: gguf.GGUFWriter) -> None:
    """Write all that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_fields(
    writer: gguf.GGUFWriter,
    architecture: str,
    config: PretrainedConfig,
    more: Mapping[str, Scalar],
) -> None:
    """Add the fields that the converter writes for every text model."""
    rope = config.rope_parameters
    theta = rope.get("full_attention", rope)["rope_theta"]
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(theta)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    for key, value in more.items():
        add_field(writer, f"{architecture}.{key}", value)


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(list(vocabulary.tokens))
    for key, value in vocabulary.more.items():
        if isinstance(value, bool | int | float | str):
            add_field(writer, f"tokenizer.ggml.{key}", value)
        elif len(value):
            writer.add_array(f"tokenizer.ggml.{key}", list(value))


def weights_of(file: Path) -> dict[str, np.ndarray]:
    """Return the numbers of a file's tensors as `gguf` reads them."""
    reader = gguf.GGUFReader(file)
    return {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}


def fields_of(file: Path) -> Fields:
    return Fields(read_header(file))


def refusal_of(file: Path) -> str:
    """Return why a file's head is refused; an empty string if it is not."""
    try:
        read_header(file)
    except CheckpointError as error:
        return str(error)
    return ""


def add_field(writer: gguf.GGUFWriter, key: str, value: Scalar) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _taken_apart(name: str, values: Tensor, architecture: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a file has for a parameter, by names that the converter gives them."""
    if ".experts." not in name:
        yield (f"{name}.weight" if name.endswith("sinks") else name), values
        return
    base, kind = name.removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
    by_turns = architecture == "gpt-oss"
    if by_turns and kind == "weight":
        values = values.transpose(1, 2)
    if not base.endswith("gate_up_proj"):
        yield f"{base}.{kind}", values
        return
    halves = (values[:, ::2], values[:, 1::2]) if by_turns else values.chunk(2, 1)
    for part, half in zip(("gate_proj", "up_proj"), halves, strict=True):
        yield f"{base.replace('gate_up_proj', part)}.{kind}", half


def _converted(name: str, values: Tensor, architecture: str, config: PretrainedConfig) -> Tensor:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = next((count for part, count in heads.items() if part in name), None)
    if architecture in PERMUTED and num_heads is not None:
        halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
        return halves.transpose(1, 2).reshape(values.shape).contiguous()
    if architecture in SHIFTED and name.endswith("norm.weight"):
        return values + torch.ones(())
    return values
