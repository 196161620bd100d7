"""Queries that grow with their position, in Llama 4's layers without RoPE.

The module itself takes a token's index in the row for its position, which is wrong where requests
are packed: so its own scaling is switched off, and this hook applies the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.models.attention.hook import AttentionContext, AttentionHook

SWITCH = "attn_temperature_tuning"


@dataclass(frozen=True, slots=True)
class TemperatureHook:
    """Scales the queries by their positions, then attends by `inner`."""

    inner: AttentionHook
    context: AttentionContext
    floor_scale: float
    attn_scale: float

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        positions = self.context.positions
        assert positions is not None
        floors = torch.floor((positions.float() + 1.0) / self.floor_scale)
        scales = torch.log1p(floors) * self.attn_scale + 1.0
        scaled = (query * scales[:, None]).to(query.dtype)
        return self.inner.attend(scaled, key, value, extras)


def is_tempered(attention: nn.Module) -> bool:
    """Return whether the module scales its queries; its configuration tells, also after
    `switch_off`."""
    if not hasattr(attention, SWITCH) or attention.use_rope:
        return False
    return bool(getattr(attention.config, SWITCH, False))


def switch_off(attention: nn.Module) -> None:
    """Switch off the scaling in the module itself."""
    setattr(attention, SWITCH, False)


def temperature_hook(
    attention: nn.Module, inner: AttentionHook, context: AttentionContext
) -> TemperatureHook:
    floor_scale, attn_scale = float(attention.floor_scale), float(attention.attn_scale)  # type: ignore[arg-type]
    return TemperatureHook(inner, context, floor_scale, attn_scale)
