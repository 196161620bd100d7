"""A transformers module behind the `Model` protocol, whose attention runs on the paged KV store,
and whose recurrent modules run on the state store.

Each attention module carries an `AttentionHook`, and the one attention function that is registered
with transformers calls it. Some families drop keyword arguments on the way, so nothing of the step
is passed by keyword.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.attention.backend import AttentionBackend, AttentionStep
from quire.models.attention.hook import AttentionContext, AttentionHook
from quire.models.attention.latent import is_latent, keep_latent, latent_hook
from quire.models.batch import Batch, StepRows
from quire.models.block_rows import BlockRows
from quire.models.config import LayerFacts
from quire.models.kv.block_copier import BlockCopier
from quire.models.kv.kv_rows import build_kv_rows
from quire.models.kv.kv_store import KVStore
from quire.models.kv.pages_ahead import PagesAhead
from quire.models.layers.temperature import is_tempered, switch_off, temperature_hook
from quire.models.recurrent.hook import StateAccess
from quire.models.recurrent.kernels import RecurrentKernels
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.state_copier import StateCopier
from quire.models.recurrent.state_rows import StateRows
from quire.models.recurrent.state_store import StateStore

HOOK = "quire_attention_hook"
LAYER_NUMBER = re.compile(r"\blayers\.(\d+)\.")


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **extras: object,
) -> tuple[Tensor, None]:
    """The attention function of transformers for each layer of a `quire_paged` model."""
    hook: AttentionHook = getattr(module, HOOK)
    out = hook.attend(query, key, value, {"attention_mask": attention_mask, **extras})
    return out.contiguous(), None  # some families view it otherwise


@dataclass(frozen=True, slots=True)
class PagedAttentionHook:
    """Attends by the step of the context's backend, with the facts of its layer."""

    layer: LayerFacts
    context: AttentionContext

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        step = self.context.attention
        if step is None:
            raise RuntimeError("the module was called outside of HFModel.forward")
        rows, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return step.attend(self.layer, rows, keys, values, sinks_of(extras))[None]


@dataclass(frozen=True, slots=True)
class HFModel:
    """Implements `Model` over a transformers module.

    `backend` and `copier` work on one `store`. `states` and the `kernels` that work on them are for
    recurrent layers; None without. `state_copier` copies them; None if the host has none. Several
    models may share one `module`, but only one of them may run at a time.
    """

    module: nn.Module
    context: AttentionContext
    copier: BlockCopier
    backend: AttentionBackend
    vocab_size: int
    store: KVStore
    states: StateStore | None = None
    kernels: RecurrentKernels | None = None
    state_copier: StateCopier | None = None

    @property
    def device(self) -> torch.device:
        """The device of its weights, K and V."""
        return next(self.module.parameters()).device

    def block_rows(self) -> BlockRows | None:
        return build_kv_rows(self.store, self.device) if self.store.tensors else None

    def pages_ahead(self) -> PagesAhead | None:
        return PagesAhead(self.store.tensors) if self.device.type == "cpu" else None

    def state_rows(self) -> BlockRows | None:
        return None if self.states is None else StateRows(self.states)

    @property
    def state_form(self) -> str:
        if self.states is None:
            return ""
        return f"{type(self.kernels).__name__} {self.states.form}"

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        if self.state_copier is None:
            self.copier.copy_blocks(copies, new_blocks)
            return
        self.state_copier.copy_states(copies)
        blocks = [each for each in copies if not each.kind.is_of_state]
        self.copier.copy_blocks(blocks, new_blocks)

    def take_copy_time(self) -> CopyTime:
        of_blocks = self.copier.take_copy_time()
        if self.state_copier is None:
            return of_blocks
        return of_blocks.with_states(self.state_copier.take_copy_time())

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        attention = self.backend.begin(batch)
        return self.compute(
            batch.input_ids, batch.positions, batch.logits_indices, attention, batch.pieces
        )

    @torch.inference_mode()
    def forward_with_states(self, batch: Batch) -> StepRows:
        self.context.states_indices = batch.states_indices
        try:
            logits = self.forward(batch)
            states = self.context.states
        finally:
            self.context.states_indices = self.context.states = None
        if states is None:
            raise RuntimeError("the module does not show the states that its head reads")
        return StepRows(logits, states)

    def compute(
        self,
        input_ids: Tensor,
        positions: Tensor,
        logits_indices: Tensor,
        attention: AttentionStep,
        pieces: Pieces | None = None,
    ) -> Tensor:
        """Compute logits [R, vocab_size] of a batch's tensors; `attention` knows the rest of it.
        Raises ValueError without `pieces` for a model with recurrent layers."""
        self.context.attention, self.context.positions = attention, positions
        self.context.recurrent.access = self._access(pieces)
        try:
            logits: Tensor = self.module(
                input_ids=input_ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=logits_indices,
            ).logits
        finally:
            self.context.attention = self.context.positions = None
            self.context.recurrent.access = None
        return logits[0]

    def _access(self, pieces: Pieces | None) -> StateAccess | None:
        if self.states is None or self.kernels is None:
            return None
        if pieces is None:
            raise ValueError("the step has no pieces, and the model has recurrent layers")
        return StateAccess(self.kernels, pieces, self.states.parts)


def sinks_of(extras: Mapping[str, object]) -> Tensor | None:
    """Return the attention sinks [heads] among a module's arguments, if it gave any."""
    sinks = extras.get("s_aux")
    return sinks if isinstance(sinks, Tensor) else None


def attention_modules(module: nn.Module) -> list[tuple[int, nn.Module]]:
    """Return every submodule with a layer index, and that index.

    Some of them never attend; the hook that they get is never used.
    """
    found = [(_layer_index(name, part), part) for name, part in module.named_modules()]
    return [(index, part) for index, part in found if index is not None]


def _layer_index(name: str, part: nn.Module) -> int | None:
    """Return the index of the module's layer; where layers share their weights, the module has none
    of its own, and its name has it."""
    index: object = getattr(part, "layer_idx", None)
    if not isinstance(index, int) or index >= 0:
        return index if isinstance(index, int) else None
    number = LAYER_NUMBER.search(name)
    return None if number is None else int(number[1])


def prepare(module: nn.Module, model_type: str) -> None:
    """Switch off operations of the attention modules that the hooks replace."""
    for _, attention in attention_modules(module):
        if is_latent(attention):
            keep_latent(attention, model_type)
        if is_tempered(attention):
            switch_off(attention)


def attach_hook(attention: nn.Module, hook: AttentionHook, context: AttentionContext) -> None:
    """Let a prepared module attend by `hook`. Its weights must not be replaced afterwards."""
    if is_latent(attention):
        hook = latent_hook(attention, hook)
    if is_tempered(attention):
        hook = temperature_hook(attention, hook, context)
    setattr(attention, HOOK, hook)
