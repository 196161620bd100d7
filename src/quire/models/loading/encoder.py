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

from quire.models.batch import Batch
from quire.models.config import (
    FORWARD_ERRORS,
    FailedCheck,
    ModelDtype,
    ModelFacts,
    UnsupportedModel,
)
from quire.models.encoder import EncoderModel, PackedTexts, TextAttentionHook
from quire.models.hf import HOOK
from quire.models.loading.checkpoint import Progress
from quire.models.loading.checkpoint_kind import is_scorer
from quire.models.loading.checks.measure import PACKED, REDIRECTED
from quire.models.loading.checks.noise import NOISES_APART, rounding_noise
from quire.models.loading.checks.packing import check_tokens, distance
from quire.models.loading.checks.probe import OTHER_DTYPE
from quire.models.loading.dtype_choice import DTYPES
from quire.models.loading.scoring import ScoringHead, scoring_head
from quire.models.loading.support import OFFSET_POSITIONS, max_model_len
from quire.models.loading.weight_files import read_headers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ADVICE = "Pass --dtype float32 if that is not so yet, and report the model and this line"


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """A loaded encoder with its facts; it has no layers that keep anything. Where it `is_scorer`,
    its states are one score each."""

    model: EncoderModel
    facts: ModelFacts
    is_scorer: bool = False

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
    scores = is_scorer(folder)
    load = pretrained.load_scorer_module if scores else pretrained.load_encoder_module
    whole = load(folder, config, chosen, lambda done, total: on_progress("weights", done, total))
    on_progress("probe", 0, 1)
    nn.Module.to(whole, device)
    model = _with_hooks(whole, config, scoring_head(whole) if scores else None)
    _check(model, whole, config.model_type)
    on_progress("probe", 1, 1)
    facts = ModelFacts(
        model_type=config.model_type,
        layers=(),
        vocab_size=config.vocab_size,
        max_model_len=max_model_len(config) - model.first_position,
        eos_token_ids=(),
        dtype=str(chosen).removeprefix("torch."),
        dtype_bytes=chosen.itemsize,
        hidden_size=1 if scores else config.hidden_size,
    )
    return LoadedEncoder(model, facts, scores)


def _with_hooks(
    whole: "PreTrainedModel", config: "PretrainedConfig", head: ScoringHead | None
) -> EncoderModel:
    texts = PackedTexts()
    for part in whole.modules():
        setattr(part, HOOK, TextAttentionHook(texts))
    return EncoderModel(
        module=whole.base_model,
        texts=texts,
        vocab_size=config.vocab_size,
        first_position=_first_position(config),
        has_types=(getattr(config, "type_vocab_size", None) or 1) > 1,
        head=head,
    )


def _dtype(asked: ModelDtype, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the compute dtype. The answers are numbers, so they are not rounded for speed by
    default; a CPU computes in half precision only if configured."""
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
    device = next(module.parameters()).device
    padding = module.config.pad_token_id
    text = [token for token in check_tokens(model.vocab_size) if token != padding]
    other = text[2::-1]
    try:
        own = _own(model, module, text)
        noise = rounding_noise(module, lambda: _own(model, module, text), own)
        alone = _packed(model, [text], text, device)
        beside = _packed(model, [other, text, other], text, device)
    except FORWARD_ERRORS as error:
        raise UnsupportedModel(model_type, f"a first forward failed: {error!r}") from error
    if not torch.isfinite(own).all():
        raise FailedCheck(model_type, f"states overflow in {own.dtype}", OTHER_DTYPE)
    bound = NOISES_APART * noise
    for what, found, expected in ((REDIRECTED, alone, own), (PACKED, beside, alone)):
        apart = distance(found, expected)
        if not apart <= bound:
            why = f"{what} (results are {apart:.2g} of their size apart, rounding {bound:.2g})"
            raise FailedCheck(model_type, why, ADVICE)


def _own(model: EncoderModel, module: "PreTrainedModel", text: Sequence[int]) -> Tensor:
    """Return what the module gives for a text by its own attention: the states of its tokens, or
    one row of scores."""
    from quire.models.loading import pretrained

    device = next(module.parameters()).device
    with pretrained.own_attention(module):
        answer = module(input_ids=torch.tensor([text], device=device))
    rows: Tensor = answer.last_hidden_state[0] if model.head is None else answer.logits
    return rows


def _packed(
    model: EncoderModel, texts: Sequence[list[int]], text: list[int], device: torch.device
) -> Tensor:
    """Return the rows that the model gives for one of some texts in a step: a state for each token,
    or a score."""
    ids = [token for each in texts for token in each]
    positions = [position for each in texts for position in range(len(each))]
    first = sum(map(len, texts[: texts.index(text)]))
    places = range(first, first + (len(text) if model.head is None else 1))
    batch = Batch(
        input_ids=torch.tensor(ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=(),
        block_tables=(),
        query_starts=tuple(accumulate(map(len, texts), initial=0)),
        context_lens=tuple(map(len, texts)),
        logits_indices=torch.tensor([], dtype=torch.int64, device=device),
        states_indices=torch.tensor(places, device=device),
    )
    rows = model.forward_with_states(batch).states
    assert rows is not None
    return rows
