"""The one door to transformers: half typed there, typed here. Slow to import, so import it late."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import transformers.utils.logging as transformers_logging
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from quire.models.config import CheckpointError, UnsupportedModel
from quire.models.hf import paged_attention
from quire.models.narrow import narrow_state

PAGED = "quire_paged"

TensorCount = Callable[[int, int], None]
Loaded = tuple[PreTrainedModel, Mapping[str, Collection[str]]]


def read_config(folder: Path, *, trust_remote_code: bool) -> PretrainedConfig:
    """Of the whole checkpoint; `config.get_text_config()` is of the language model in it."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code
        )
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{folder}: its configuration cannot be used: {error}") from error
    return config


def build_without_weights(config: PretrainedConfig) -> PreTrainedModel:
    """The model as `load_module` would give it, on the device that has shapes but no numbers."""
    AttentionInterface.register(PAGED, paged_attention)
    with torch.device("meta"), _cannot_be_redirected(config):
        module: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=PAGED
        )
    nn.Module.train(module, False)
    return module


@contextmanager
def own_attention(module: PreTrainedModel) -> Iterator[None]:
    """Within, the module attends as transformers has it."""
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(PAGED)


def stored_dtype(config: PretrainedConfig) -> torch.dtype | None:
    """None: the configuration does not say."""
    return config.dtype if isinstance(config.dtype, torch.dtype) else None


def load_module(
    folder: Path,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype | None,
    trust_remote_code: bool,
    on_tensor: TensorCount,
) -> PreTrainedModel:
    """The model on the CPU, its attention redirected. `dtype` None: as the weights are stored."""
    with _loading(folder, config, on_tensor):
        loaded: Loaded = AutoModelForCausalLM.from_pretrained(  # type: ignore[assignment]
            folder,
            output_loading_info=True,
            attn_implementation=PAGED,
            dtype=dtype or "auto",
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    return _for_inference(folder, loaded)


def load_narrow(
    folder: Path, config: PretrainedConfig, outline: PreTrainedModel, on_tensor: TensorCount
) -> PreTrainedModel:
    """The same in float32, where matrices of half precision stay as they are stored (`narrow.py`).
    `outline`: what `build_without_weights` gave."""
    with _loading(folder, config, on_tensor):
        loaded: Loaded = type(outline).from_pretrained(  # type: ignore[assignment]
            None,
            config=config,
            state_dict=narrow_state(folder),
            output_loading_info=True,
            attn_implementation=PAGED,
            dtype=torch.float32,
        )
    module = _for_inference(folder, loaded)
    with suppress(OSError):  # there may be none
        module.generation_config = GenerationConfig.from_pretrained(folder)
    return module


@contextmanager
def _loading(folder: Path, config: PretrainedConfig, on_tensor: TensorCount) -> Iterator[None]:
    AttentionInterface.register(PAGED, paged_attention)
    with _counted(on_tensor), _cannot_be_redirected(config):
        try:
            yield
        except (ValueError, OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder} cannot be loaded: {error}") from error


def _for_inference(folder: Path, loaded: Loaded) -> PreTrainedModel:
    module, report = loaded
    _refuse_missing(folder, report["missing_keys"])
    nn.Module.train(module, False)
    nn.Module.requires_grad_(module, False)
    return module


@contextmanager
def _cannot_be_redirected(config: PretrainedConfig) -> Iterator[None]:
    """Families that choose among attention classes of their own do not find one for PAGED."""
    try:
        yield
    except KeyError as error:
        if PAGED not in error.args:
            raise
        raise UnsupportedModel(
            config.model_type, "their attention cannot be redirected to a paged cache"
        ) from error


def _refuse_missing(folder: Path, names: Collection[str]) -> None:
    """transformers would go on with random numbers in their place."""
    if names:
        some = ", ".join(sorted(names)[:3])
        raise CheckpointError(f"{folder} lacks {len(names)} of the weights: {some}")


def eos_token_ids(module: PreTrainedModel) -> tuple[int, ...]:
    """What `generate` would stop at: generation_config.json if there is one, else config.json."""
    config = module.generation_config
    ids: int | Sequence[int] | None = None if config is None else config.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


@contextmanager
def _counted(on_tensor: TensorCount) -> Iterator[None]:
    """transformers' progress bars, which print, become calls of `on_tensor`."""

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
