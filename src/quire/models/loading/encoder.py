"""Loads an encoder, and checks that it is served right: its states with attention redirected are
those by its own, and no text changes the states of one beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.models.config import ModelDtype, ModelFacts, UnsupportedModel
from quire.models.encoder import EncoderModel, PackedTexts, TextAttentionHook
from quire.models.hf import HOOK
from quire.models.loading.batch_invariance import TOLERANCE, is_close
from quire.models.loading.checkpoint import Progress
from quire.models.loading.dtype_choice import DTYPES
from quire.models.loading.probe import FORWARD_ERRORS
from quire.models.loading.support import OFFSET_POSITIONS, max_model_len
from quire.models.loading.weight_files import read_headers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TEXT, OTHER = (1, 0, 1, 1, 0, 1), (0, 1, 0)
"""Texts of two tokens."""


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """A loaded encoder with its facts; it has no layers that keep anything."""

    model: EncoderModel
    facts: ModelFacts

    @property
    def weight_bytes(self) -> int:
        module = self.model.module
        return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def load_encoder(
    folder: Path, *, dtype: ModelDtype, device: torch.device, on_progress: Progress
) -> LoadedEncoder:
    """Load an encoder, by default in the dtype that its weights are stored in. Raises
    CheckpointError or UnsupportedModel."""
    from quire.models.loading import pretrained

    config = pretrained.read_encoder_config(folder)
    chosen = _dtype(dtype, pretrained.stored_dtype(config, read_headers(folder)), device)
    module = pretrained.load_encoder_module(
        folder, config, chosen, lambda done, total: on_progress("weights", done, total)
    )
    on_progress("probe", 0, 1)
    nn.Module.to(module, device)
    first_position = _first_position(config)
    texts = PackedTexts()
    for part in module.modules():
        setattr(part, HOOK, TextAttentionHook(texts))
    model = EncoderModel(module, texts, config.vocab_size, first_position)
    _check(model, module, config.model_type)
    on_progress("probe", 1, 1)
    facts = ModelFacts(
        model_type=config.model_type,
        layers=(),
        vocab_size=config.vocab_size,
        max_model_len=max_model_len(config) - first_position,
        eos_token_ids=(),
        dtype=str(chosen).removeprefix("torch."),
        dtype_bytes=chosen.itemsize,
        hidden_size=config.hidden_size,
    )
    return LoadedEncoder(model, facts)


def _dtype(asked: ModelDtype, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in. Numbers are the answer here, so that none are rounded for
    speed that nobody asked for; a CPU computes in half precision only where asked."""
    if asked is not ModelDtype.AUTO:
        return DTYPES[asked]
    return torch.float32 if stored is None or device.type == "cpu" else stored


def _first_position(config: "PretrainedConfig") -> int:
    """Return the position of the first token: behind that of the padding token in some families."""
    if config.model_type not in OFFSET_POSITIONS:
        return 0
    padding = config.pad_token_id
    return 1 if padding is None else int(padding) + 1


@torch.inference_mode()
def _check(model: EncoderModel, module: "PreTrainedModel", model_type: str) -> None:
    """Raise UnsupportedModel unless the states are right, alone and beside another text."""
    from quire.models.loading import pretrained

    device = next(module.parameters()).device
    ids = [each for each in range(3) if each != module.config.pad_token_id]
    text, other = ([ids[token] for token in each] for each in (TEXT, OTHER))
    try:
        with pretrained.own_attention(module):
            row = torch.tensor([text], device=device)
            own: Tensor = module(input_ids=row).last_hidden_state[0]
        alone = _packed(model, [text], device)
        beside = _packed(model, [other, text, other], device)[len(other) : -len(other)]
    except FORWARD_ERRORS as error:
        raise UnsupportedModel(model_type, f"a first forward failed: {error!r}") from error
    if not torch.isfinite(own).all():
        raise UnsupportedModel(model_type, f"states overflow in {own.dtype}: use another dtype")
    if not is_close(alone, own, TOLERANCE):
        raise UnsupportedModel(
            model_type, "with their attention redirected and positions given they differ"
        )
    if not is_close(beside, alone, TOLERANCE):
        raise UnsupportedModel(model_type, "texts packed into one row change each other")


def _packed(model: EncoderModel, texts: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    ids = torch.tensor([token for text in texts for token in text], device=device)
    places = [place for text in texts for place in range(len(text))]
    starts = tuple(accumulate(map(len, texts), initial=0))
    return model.states(ids, torch.tensor(places, device=device), starts)
