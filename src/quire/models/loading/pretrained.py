"""All calls of transformers, with types. Slow to import, so import this module late."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypedDict

import torch
import transformers.utils.logging as transformers_logging
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from quire.models.config import CheckpointError, UnsupportedModel
from quire.models.hf import paged_attention
from quire.models.loading.checkpoint_kind import TEXT_PARTS, has_head, zero_fields
from quire.models.loading.end_tokens import end_tokens
from quire.models.loading.safetensors.stored_tensors import FLOATS, StoredTensor
from quire.models.loading.state_dict import lazy_state

logger = logging.getLogger(__name__)

PAGED = "quire_paged"
POOLERS = frozenset({"bert", "camembert", "roberta", "xlm-roberta"})
"""Encoders that have a layer behind the states which embeddings are not made of."""
MAX_REASON_CHARS = 500
"""The maximum length of a reason, which may repeat the text of a file."""
STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

TensorCount = Callable[[int, int], None]
Mismatch = tuple[str, torch.Size, torch.Size]
"""A weight's name, and its shape in the file and by the configuration."""


class LoadingInfo(TypedDict):
    """The part that is used of transformers' `output_loading_info`."""

    missing_keys: Collection[str]
    mismatched_keys: Collection[Mismatch]


Loaded = tuple[PreTrainedModel, LoadingInfo]
LOADING_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError),
    *(RuntimeError, SafetensorError, StrictDataclassError, TypeError, ValueError),
)
"""Exceptions that transformers raises over files that fit neither it nor each other."""


def read_config(folder: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    """Return the configuration of the whole checkpoint, its language model and other parts.

    Raises CheckpointError or UnsupportedModel. `config.get_text_config()` is the language model's.
    """
    with _as_checkpoint_error(folder, "its configuration cannot be used"):
        config: PretrainedConfig = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code
        )
    _leave_quantisation_out(config)
    _add_text_part(config)
    if not trust_remote_code and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(
            config.model_type, "transformers has no causal language model of this type"
        )
    if not trust_remote_code and not has_head(folder):
        # transformers' class has one, whose weights are not there: it is not used.
        config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = True
    return config


def _leave_quantisation_out(config: PretrainedConfig) -> None:
    """Take out how weights were quantised: they are read by Quire, and transformers would look for
    libraries of its own."""
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config


def _add_text_part(config: PretrainedConfig) -> None:
    """Let `AutoModelForCausalLM` load a model of images and text whose text alone is served, where
    transformers has no class for that."""
    kind, images = type(config), MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if config.model_type in TEXT_PARTS and kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        if kind in images:
            AutoModelForCausalLM.register(kind, images[kind], exist_ok=True)


def read_encoder_config(folder: Path) -> PretrainedConfig:
    """Return the configuration of an encoder. Raises CheckpointError."""
    with _as_checkpoint_error(folder, "its configuration cannot be used"):
        config: PretrainedConfig = AutoConfig.from_pretrained(folder)
    return config


def load_encoder_module(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, on_tensor: TensorCount
) -> PreTrainedModel:
    """Load an encoder without heads on the CPU, whose attention modules want hooks."""
    options = {"add_pooling_layer": False} if config.model_type in POOLERS else {}
    with _loading(folder, config, on_tensor):
        loaded: Loaded = AutoModel.from_pretrained(
            folder,
            output_loading_info=True,
            attn_implementation=PAGED,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused by name
            **options,
        )
    return _for_inference(folder, loaded)


def load_scorer_module(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype, on_tensor: TensorCount
) -> PreTrainedModel:
    """Load a model for sequence classification on the CPU, as `load_encoder_module` does."""
    with _loading(folder, config, on_tensor):
        loaded: Loaded = AutoModelForSequenceClassification.from_pretrained(
            folder,
            output_loading_info=True,
            attn_implementation=PAGED,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused by name
        )
    return _for_inference(folder, loaded)


def build_without_weights(
    folder: Path, config: PretrainedConfig, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Return the model as `load_module` would, but on the meta device, without numbers; `dtype`
    None means that of the configuration."""
    wrapped = _as_checkpoint_error(folder, "no model can be built by its configuration")
    with wrapped, _cannot_be_redirected(config):
        module = build_from_config(config, torch.device("meta"), dtype or config.dtype)
    nn.Module.train(module, False)
    _widen_kept(module)
    return module


def build_from_config(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype | str | None
) -> PreTrainedModel:
    """Return a causal language model with paged attention and the numbers that transformers gives
    it at first. Raises what transformers raises."""
    AttentionInterface.register(PAGED, paged_attention)
    _add_text_part(config)
    with device:
        module: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=PAGED, dtype=dtype
        )
    return module


def _widen_kept(module: PreTrainedModel) -> None:
    """Give the weights float32 that transformers keeps so whatever a checkpoint is loaded in."""
    kept = tuple(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if any(part in name.split(".") for part in kept):
            tensor.data = tensor.data.float()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' logs about an internal model during the context."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


@contextmanager
def own_attention(module: PreTrainedModel) -> Iterator[None]:
    """Let the module use transformers' own attention for the time of the context."""
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(PAGED)


def stored_dtype(config: PretrainedConfig, tensors: Sequence[StoredTensor]) -> torch.dtype | None:
    """Return the configuration's dtype, else the first float weight's; None for any other."""
    if isinstance(config.dtype, torch.dtype):
        return config.dtype
    first = next((tensor.dtype for tensor in tensors if tensor.dtype in FLOATS), "")
    return STORED.get(first)


def load_module(
    folder: Path,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype | None,
    trust_remote_code: bool,
    on_tensor: TensorCount,
) -> PreTrainedModel:
    """Load the model on the CPU, with paged attention; `dtype` None means as stored."""
    with _loading(folder, config, on_tensor):
        loaded: Loaded = AutoModelForCausalLM.from_pretrained(  # type: ignore[assignment]
            folder,
            output_loading_info=True,
            attn_implementation=PAGED,
            dtype=dtype or "auto",
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,  # they are refused by name
        )
    return _for_inference(folder, loaded)


def load_lazy(
    folder: Path,
    config: PretrainedConfig,
    skeleton: PreTrainedModel,
    dtype: torch.dtype,
    on_tensor: TensorCount,
) -> PreTrainedModel:
    """Load the model in `dtype`, where matrices stay as they are stored (`lazy_weight.py`): those
    of GGUF files, and of 16 bits where `dtype` is float32.

    `skeleton` is what `build_without_weights` returned.
    """
    with _loading(folder, config, on_tensor):
        kind = type(skeleton)
        is_whole = isinstance(config, kind.config_class or PretrainedConfig)
        loaded: Loaded = kind.from_pretrained(  # type: ignore[assignment]
            None,
            config=config if is_whole else config.get_text_config(),
            state_dict=lazy_state(folder, dtype),
            output_loading_info=True,
            attn_implementation=PAGED,
            dtype=dtype,
            ignore_mismatched_sizes=True,  # they are refused by name
        )
    module = _for_inference(folder, loaded)
    with suppress(OSError):  # there may be none
        module.generation_config = GenerationConfig.from_pretrained(folder)
    return module


@contextmanager
def _loading(folder: Path, config: PretrainedConfig, on_tensor: TensorCount) -> Iterator[None]:
    AttentionInterface.register(PAGED, paged_attention)
    with (
        _counted(on_tensor),
        _as_checkpoint_error(folder, "cannot be loaded"),
        _cannot_be_redirected(config),
    ):
        yield


def _for_inference(folder: Path, loaded: Loaded) -> PreTrainedModel:
    module, report = loaded
    _refuse_mismatched(folder, report["mismatched_keys"])
    _refuse_missing(folder, report["missing_keys"])
    nn.Module.train(module, False)
    nn.Module.requires_grad_(module, False)
    return module


@contextmanager
def _as_checkpoint_error(folder: Path, what: str) -> Iterator[None]:
    """Raise transformers' errors as one sentence that names the folder; the log has the origin."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except LOADING_ERRORS as error:
        logger.debug("%s %s", folder, what, exc_info=error)
        raise CheckpointError(f"{folder}: {what}: {_reason(folder, error)}") from error


def _reason(folder: Path, error: Exception) -> str:
    zeros = zero_fields(folder) if isinstance(error, ZeroDivisionError) else []
    if zeros:
        return f"it is divided by a field that is 0, one of {', '.join(zeros)}"
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    shown = cause or error
    text = " ".join(str(shown).split())[:MAX_REASON_CHARS]
    is_sentence = isinstance(shown, OSError | SafetensorError | TypeError | ValueError)
    return text if is_sentence else f"{type(shown).__name__}: {text}"


@contextmanager
def _cannot_be_redirected(config: PretrainedConfig) -> Iterator[None]:
    """Refuse families that choose among attention classes of their own, and have none for PAGED."""
    try:
        yield
    except KeyError as error:
        if PAGED not in error.args:
            raise
        raise UnsupportedModel(
            config.model_type, "their attention cannot be redirected to a paged cache"
        ) from error


def _refuse_mismatched(folder: Path, mismatches: Collection[Mismatch]) -> None:
    """Raise CheckpointError: transformers would go on with random numbers in their place."""
    for name, stored, wanted in sorted(mismatches):
        raise CheckpointError(
            f"{folder}: {len(mismatches)} of the weights do not fit its config.json: {name} is "
            f"{list(stored)} in the file, and would be {list(wanted)}"
        )


def _refuse_missing(folder: Path, names: Collection[str]) -> None:
    """Raise CheckpointError: transformers would go on with random numbers in their place."""
    if names:
        some = ", ".join(sorted(names)[:3])
        raise CheckpointError(f"{folder} lacks {len(names)} of the weights: {some}")


def eos_token_ids(folder: Path, module: PreTrainedModel) -> tuple[int, ...]:
    """Return the tokens that `generate` stops at: of generation_config.json, else config.json."""
    config = module.generation_config
    return end_tokens(None if config is None else config.eos_token_id, folder)


@contextmanager
def _counted(on_tensor: TensorCount) -> Iterator[None]:
    """Turn transformers' progress bars, which print, into calls of `on_tensor`."""

    def count(
        _bar: object, args: tuple[Iterable[object], ...], options: Mapping[str, object]
    ) -> Iterator[object]:
        items = list(args[0])
        for done, item in enumerate(items):
            yield item
            on_tensor(done + 1, len(items))

    previous = transformers_logging.set_tqdm_hook(count)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)
