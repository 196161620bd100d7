"""A transformers module behind the `Model` protocol: its attention runs on the paged store.

Each attention module carries a port, and the one registered attention function goes through it:
some families drop keyword arguments on the way, so nothing of the step is passed by keyword.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.cache.block_copies import BlockCopy
from quire.models.attention.backend import AttentionBackend, AttentionStep
from quire.models.attention.port import CurrentStep, Port
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv.transfers import Mover
from quire.models.layers.latent import is_latent, keep_latent, latent_port
from quire.models.layers.temperature import is_tempered, switch_off, tempered_port

PORT = "quire_port"


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **extras: object,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer of a model loaded as `quire_paged`."""
    port: Port = getattr(module, PORT)
    out = port.attend(query, key, value, {"attention_mask": attention_mask, **extras})
    return out.contiguous(), None  # some families view it otherwise


@dataclass(frozen=True, slots=True)
class PagedPort:
    layer: LayerFacts
    current: CurrentStep

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        step = self.current.attention
        if step is None:
            raise RuntimeError("the module was called outside of HFModel.forward")
        rows, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return step.attend(self.layer, rows, keys, values, sinks_of(extras))[None]


@dataclass(frozen=True, slots=True)
class HFModel:
    """Implements `Model`. `backend` and `mover` are of one store; several may share one `module` in
    turn."""

    module: nn.Module
    current: CurrentStep
    mover: Mover
    backend: AttentionBackend
    vocab_size: int

    @torch.inference_mode()
    def move(self, moves: Sequence[BlockCopy], claimed: Collection[int]) -> Callable[[], float]:
        return self.mover.move(moves, claimed)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        attention = self.backend.begin(batch)
        self.current.only_largest = batch.only_largest
        try:
            return self.compute(batch.input_ids, batch.positions, batch.logit_rows, attention)
        finally:
            self.current.only_largest = False

    def compute(
        self, input_ids: Tensor, positions: Tensor, logit_rows: Tensor, attention: AttentionStep
    ) -> Tensor:
        """As `forward`, of the tensors of a Batch, where `attention` knows the rest of it."""
        self.current.attention, self.current.positions = attention, positions
        try:
            logits: Tensor = self.module(
                input_ids=input_ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=logit_rows,
            ).logits
        finally:
            self.current.attention = self.current.positions = None
        return logits[0]


def sinks_of(extras: Mapping[str, object]) -> Tensor | None:
    sinks = extras.get("s_aux")
    return sinks if isinstance(sinks, Tensor) else None


def attention_modules(module: nn.Module) -> list[tuple[int, nn.Module]]:
    """Everything with a layer index. Modules that never attend get a port that is never used."""
    found = [(getattr(part, "layer_idx", None), part) for part in module.modules()]
    return [(index, part) for index, part in found if isinstance(index, int)]


def prepare(module: nn.Module, model_type: str) -> None:
    """Switch off what the ports do in the modules' stead."""
    for _, attention in attention_modules(module):
        if is_latent(attention):
            keep_latent(attention, model_type)
        if is_tempered(attention):
            switch_off(attention)


def plug(attention: nn.Module, port: Port, current: CurrentStep) -> None:
    """Let a prepared module, its weights where they stay, attend by `port`."""
    if is_latent(attention):
        port = latent_port(attention, port)
    if is_tempered(attention):
        port = tempered_port(attention, port, current)
    setattr(attention, PORT, port)
