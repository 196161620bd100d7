"""A transformers module behind the `Model` protocol: its attention runs on the paged store.

Each attention module carries a port, and the one registered attention function goes through it:
some families drop keyword arguments on the way, so nothing of the step is passed by keyword.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from quire.models.attention.backend import AttentionBackend, AttentionStep
from quire.models.batch import Batch
from quire.models.config import LayerFacts

PORT = "quire_port"


class Port(Protocol):
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        """[1, heads, tokens, dim] each, as transformers has them, to [1, tokens, heads, dim]."""
        ...


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
    return port.attend(query, key, value, {"attention_mask": attention_mask, **extras}), None


@dataclass(slots=True)
class CurrentStep:
    """The step that a module is running now; all its ports look here."""

    step: AttentionStep | None = None


@dataclass(frozen=True, slots=True)
class PagedPort:
    layer: LayerFacts
    current: CurrentStep

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        step = self.current.step
        if step is None:
            raise RuntimeError("the module was called outside of HFModel.forward")
        rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        return step.attend(self.layer, *rows)[None]


@dataclass(frozen=True, slots=True)
class HFModel:
    """Implements `Model`. `backend` owns the K and V; several may share one `module` in turn."""

    module: nn.Module
    current: CurrentStep
    backend: AttentionBackend
    vocab_size: int

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        self.current.step = self.backend.begin(batch)
        try:
            logits: Tensor = self.module(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.logit_rows,
            ).logits
        finally:
            self.current.step = None
        return logits[0]


def attention_modules(module: nn.Module) -> list[tuple[int, nn.Module]]:
    """Everything with a layer index. Modules that never attend get a port that is never used."""
    found = [(getattr(part, "layer_idx", None), part) for part in module.modules()]
    return [(index, part) for index, part in found if isinstance(index, int)]


def plug(attention: nn.Module, port: Port) -> None:
    setattr(attention, PORT, port)
