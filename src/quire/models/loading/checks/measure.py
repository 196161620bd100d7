"""Measures a module with a few tokens: its logits by its own attention, with attention redirected
and positions given, and packed beside another request. All three must be the same but for rounding.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.models.attention.hook import AttentionContext
from quire.models.config import FailedCheck, KVOptions, ModelFacts
from quire.models.hf import HFModel, PagedAttentionHook, attach_hook, attention_modules, prepare
from quire.models.layers.frozen_rotary import freeze_rotary
from quire.models.loading.checks.packing import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_STATES,
    check_tokens,
    distance,
    hidden_size,
    logits_alone,
    logits_packed,
)
from quire.models.loading.checks.probe import ProbeResult, first_logits, probe
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.support import layering, max_model_len
from quire.models.recurrent.hook import attach_states
from quire.models.states import show_states

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ONE_GROUP = KVOptions(hybrid=False)
REDIRECTED = "with their attention redirected and positions given they say something else"
PACKED = "requests packed into one row change each other"


@dataclass(frozen=True, slots=True)
class ModuleMeasurement:
    """A measured module.

    own, redirected, packed: logits [rows, vocab_size] of the same tokens: by the module's own
        attention, by a hook in plain torch, and through paged memory beside another request.
    """

    loaded: LoadedModel
    tokens: tuple[int, ...]
    own: Tensor
    redirected: Tensor
    packed: Tensor

    def alone(self) -> Tensor:
        """Return the logits of `tokens` in a batch of their own, as the modules are now."""
        return logits_alone(attach_small(self.loaded), self.tokens, self.loaded.device)

    def packed_now(self) -> Tensor:
        """Return the logits of `tokens` beside another request, as the modules are now."""
        return logits_packed(attach_small(self.loaded), self.tokens, self.loaded.device)

    def is_same(self, expected: Tensor, bound: float) -> bool:
        """Return whether the model with its current modules gives the `expected` logits beside
        another request, up to a distance of `bound`."""
        return distance(self.packed_now(), expected) <= bound

    def refuse_beyond(self, bound: float, advice: str) -> None:
        """Raise FailedCheck if two of the logits are further apart than `bound`, which is the
        distance that rounding explains."""
        for what, found, expected in (
            (REDIRECTED, self.redirected, self.own),
            (PACKED, self.packed, self.redirected),
        ):
            apart = distance(found, expected)
            if not apart <= bound:
                raise FailedCheck(
                    self.loaded.facts.model_type,
                    f"{what} (logits are {apart:.2g} of their size apart, where rounding in "
                    f"{self.loaded.facts.dtype} explains {bound:.2g})",
                    advice,
                )


def own_logits(module: "PreTrainedModel", config: "PretrainedConfig") -> Tensor:
    """Return the logits of the checks' tokens by the module's own attention. Raises
    UnsupportedModel.

    The module must not be prepared for redirected attention yet.
    """
    from quire.models.loading import pretrained

    with pretrained.own_attention(module):
        return first_logits(module, config.model_type, _tokens(module, config))


def measure(
    module: "PreTrainedModel", config: "PretrainedConfig", own: Tensor, device: torch.device
) -> ModuleMeasurement:
    """Redirect the module's attention to paged memory, and measure it. `own` are `own_logits`.

    Raises UnsupportedModel for what is not served.
    """
    tokens, model_type = _tokens(module, config), config.model_type
    freeze_rotary(module, max_model_len(config), device)
    prepare(module, model_type)
    probed = probe(module, model_type, layering(config), tokens)
    loaded = _with_hooks(module, _facts(config, probed), probed, device)
    model = attach_small(loaded)
    facts = replace(loaded.facts, hidden_size=hidden_size(model, device))
    packed = logits_packed(model, tokens, device)
    return ModuleMeasurement(replace(loaded, facts=facts), tokens, own, probed.logits, packed)


def attach_small(loaded: LoadedModel) -> HFModel:
    """Return a model with blocks and states enough for the checks' two requests."""
    return loaded.attach(NUM_BLOCKS, BLOCK_SIZE, ONE_GROUP, num_states=NUM_STATES)


def _tokens(module: "PreTrainedModel", config: "PretrainedConfig") -> tuple[int, ...]:
    """Return the tokens of the checks. Of a divided model, a rank's embedding may be a part."""
    size = getattr(config, "vocab_size", None)
    return check_tokens(size or len(module.get_input_embeddings().get_parameter("weight")))


def _facts(config: "PretrainedConfig", probed: ProbeResult) -> ModelFacts:
    return ModelFacts(
        model_type=config.model_type,
        layers=tuple(probed.layers.values()),
        recurrent=probed.recurrent,
        vocab_size=probed.logits.shape[-1],
        max_model_len=max_model_len(config),
        eos_token_ids=(),
        dtype=str(probed.kv_dtype).removeprefix("torch."),
        dtype_bytes=probed.kv_dtype.itemsize,
    )


def _with_hooks(
    module: "PreTrainedModel", facts: ModelFacts, probed: ProbeResult, device: torch.device
) -> LoadedModel:
    context = AttentionContext()
    for index, attention in attention_modules(module):
        if index in probed.layers:
            attach_hook(attention, PagedAttentionHook(probed.layers[index], context), context)
    attach_states(module, context.recurrent)
    show_states(module, context)
    return LoadedModel(module, context, facts, probed.kv_dtype, device)
