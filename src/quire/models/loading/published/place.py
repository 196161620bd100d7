"""Tells by its configuration whether a checkpoint was quantised before it was published, and how,
without torch."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from quire.models.config import CheckpointError

CONFIG = "config.json"
MODELOPT_CONFIG = "hf_quant_config.json"
"""The file in which ModelOpt tells of quantisation, in some checkpoints alone."""
Config = Mapping[str, object]

METHODS: Mapping[str, str] = MappingProxyType(
    {
        "auto-round": "AutoRound",
        "gptq": "GPTQ",
        "awq": "AWQ",
        "fp8": "FP8",
        "fbgemm_fp8": "FP8",
        "mxfp4": "MXFP4",
        "mlx": "MLX",
        "modelopt": "ModelOpt",
    }
)
"""The usual names of `quant_method`s; others are named as the checkpoint does."""
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "auto-round": "quire.models.loading.published.auto_round:auto_round_format",
        "awq": "quire.models.loading.published.awq:awq_format",
        "bitsandbytes": "quire.models.loading.published.bitsandbytes:bitsandbytes_format",
        "compressed-tensors": "quire.models.loading.published.compressed_tensors:compressed_format",
        "fbgemm_fp8": "quire.models.loading.published.fp8:fp8_format",
        "fp8": "quire.models.loading.published.fp8:fp8_format",
        "gptq": "quire.models.loading.published.gptq:gptq_format",
        "mlx": "quire.models.loading.published.mlx:mlx_format",
        "modelopt": "quire.models.loading.published.modelopt:modelopt_format",
        "mxfp4": "quire.models.loading.published.mxfp4:mxfp4_format",
        "torchao": "quire.models.loading.published.torchao:torchao_format",
    }
)
"""The formats that are read: for each method, what makes a `PublishedFormat` of its settings."""


class Quantisation(NamedTuple):
    """The method by which weights were quantised, as `quant_method` has it, and its settings: the
    fields of the configuration's `quantization_config`."""

    method: str
    settings: Config

    @property
    def name(self) -> str:
        """The common name of the format, with its bits or its kind if known."""
        bits = self.settings.get("bits", self.settings.get("w_bit"))
        kind = self.settings.get("quant_algo", self.settings.get("format"))
        detail = f"{bits} bits" if isinstance(bits, int) else kind
        told = f" ({detail})" if isinstance(detail, str) else ""
        return f"{METHODS.get(self.method, self.method)}{told}"

    @property
    def is_read(self) -> bool:
        """Whether weights of the method are read at all; some settings of it may not be."""
        return self.method in FORMATS

    def refusal(self, folder: Path, why: str) -> str:
        """Return the sentence that refuses a folder, and what to take in its place."""
        return (
            f"{folder} holds weights quantised with {self.name}, {why}: serve the checkpoint that "
            "they were made from, with --quantization int8 if memory is short"
        )


def quantisation_of(folder: Path) -> Quantisation | None:
    """Return how the weights of a folder were quantised, or None if they were not. Raises
    CheckpointError."""
    stated = stated_quantisation(read_object(folder / CONFIG))
    if stated is not None or not (folder / MODELOPT_CONFIG).is_file():
        return stated
    settings = as_object(read_object(folder / MODELOPT_CONFIG).get("quantization"))
    return Quantisation("modelopt", settings) if settings.get("quant_algo") else None


def stated_quantisation(config: Config) -> Quantisation | None:
    """Return how weights were quantised by a configuration, or None if they were not."""
    for _, part in language_parts(config):
        # MLX repeats its settings as quantization_config, without a method, or leaves there what
        # the weights had been that it was given.
        if "bits" in as_object(part.get("quantization")):
            return Quantisation("mlx", as_object(part["quantization"]))
        stated = part.get("quantization_config") or part.get("compression_config")
        if isinstance(stated, dict) and stated:
            return Quantisation(_method(stated), stated)
    return None


def language_parts(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the configuration and the nested ones of the language model, each after its prefix."""
    yield "", config
    for name in ("text_config", "llm_config", "language_config"):
        yield f"{name}.", as_object(config.get(name))


def as_object(value: object) -> Config:
    """Return a JSON object, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def read_object(path: Path) -> Config:
    """Return the JSON object of a file. Raises CheckpointError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return config


def _method(stated: Config) -> str:
    name = stated.get("quant_method")
    if isinstance(name, str):
        return name
    return "bitsandbytes" if "load_in_4bit" in stated or "load_in_8bit" in stated else "unnamed"
