"""Measures a loaded module with a tiny forward: what its layers hand to attention, and whether
its logits are the same when requests are packed into one row. What cannot be served is refused."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from quire.models.config import LayerFacts, UnsupportedModel
from quire.models.hf import attention_modules, plug

UNDERSTOOD = frozenset({"dropout", "scaling", "sliding_window", "position_ids"})
HARMLESS = frozenset({"use_cache", "output_router_logits", "output_attentions", "return_dict"})
NAMES = {
    "attention_mask": "an attention mask of their own",
    "s_aux": "attention sinks",
    "softcap": "an attention soft cap",
}
TOKENS = (1, 0, 1, 1)
"""Any vocabulary has two tokens."""


@dataclass(frozen=True, slots=True)
class Probe:
    layers: tuple[LayerFacts, ...]
    kv_dtype: torch.dtype
    logits: Tensor
    """[vocab_size], after TOKENS."""


@dataclass(frozen=True, slots=True)
class RecordingPort:
    """Attends plainly over the tokens at hand, and notes in `seen` what its layer asked for."""

    model_type: str
    index: int
    is_causal: bool
    seen: dict[int, LayerFacts]
    dtypes: set[torch.dtype]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        self._refuse_unknown(extras)
        if not self.is_causal:
            raise UnsupportedModel(self.model_type, "their attention is not causal")
        if self.index in self.seen:
            raise UnsupportedModel(self.model_type, f"layer {self.index} attends twice")
        if key.shape != value.shape:
            raise UnsupportedModel(
                self.model_type, "keys and values differ in shape, not supported yet"
            )
        scaling, window = extras.get("scaling"), extras.get("sliding_window")
        layer = LayerFacts(
            index=self.index,
            num_kv_heads=key.shape[1],
            k_width=key.shape[3],
            v_width=value.shape[3],
            scale=scaling if isinstance(scaling, float) else query.shape[3] ** -0.5,
            window=window if isinstance(window, int) else None,
        )
        self.seen[self.index] = layer
        self.dtypes.add(key.dtype)
        return _attend(layer, query, key, value)

    def _refuse_unknown(self, extras: Mapping[str, object]) -> None:
        for name, given in extras.items():
            if given is None or name in UNDERSTOOD or name in HARMLESS:
                continue
            need = NAMES.get(name, f"the attention argument {name}")
            raise UnsupportedModel(self.model_type, f"they need {need}, not supported yet")


def probe(module: nn.Module, model_type: str, num_layers: int) -> Probe:
    seen: dict[int, LayerFacts] = {}
    dtypes: set[torch.dtype] = set()
    for index, attention in attention_modules(module):
        is_causal = bool(getattr(attention, "is_causal", True))
        plug(attention, RecordingPort(model_type, index, is_causal, seen, dtypes))
    logits = _forward(module, model_type)
    if len(seen) < num_layers:
        silent = sorted(set(range(num_layers)) - set(seen))
        raise UnsupportedModel(
            model_type, f"layers {silent} of {num_layers} do not call the attention function"
        )
    if logits.shape[:2] != (1, 1):
        raise UnsupportedModel(model_type, "their head cannot be limited to the sampled rows")
    if not torch.isfinite(logits).all():
        raise UnsupportedModel(model_type, f"logits overflow in {logits.dtype}: use another dtype")
    if len(dtypes) > 1:
        raise UnsupportedModel(model_type, "their layers differ in dtype, not supported yet")
    layers = tuple(seen[index] for index in range(num_layers))
    return Probe(layers, dtypes.pop(), logits[0, 0])


@torch.inference_mode()
def _forward(module: nn.Module, model_type: str) -> Tensor:
    device = next(module.parameters()).device
    tokens = torch.tensor([TOKENS], device=device)
    try:
        logits: Tensor = module(
            input_ids=tokens,
            position_ids=torch.arange(len(TOKENS), device=device)[None],
            use_cache=False,
            logits_to_keep=torch.tensor([len(TOKENS) - 1], device=device),
        ).logits
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedModel(model_type, f"a first forward failed: {error!r}") from error
    return logits


def _attend(layer: LayerFacts, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    places = torch.arange(query.shape[2], device=query.device)
    distance = places[:, None] - places
    visible = (distance >= 0) & (distance < (layer.window or len(places)))
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=layer.scale, enable_gqa=True
    )
    return out.transpose(1, 2)
