"""Queries that grow with their position, in Llama 4's layers without RoPE.

The module itself takes a token's place in the row for its position, which is wrong where requests
are packed: so its own growth is switched off, and the port in front of it applies the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.models.attention.port import CurrentStep, Port

SWITCH = "attn_temperature_tuning"


@dataclass(frozen=True, slots=True)
class TemperedPort:
    inner: Port
    current: CurrentStep
    floor_scale: float
    attn_scale: float

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        positions = self.current.positions
        assert positions is not None
        floors = torch.floor((positions.float() + 1.0) / self.floor_scale)
        scales = torch.log1p(floors) * self.attn_scale + 1.0
        tempered = (query * scales[:, None]).to(query.dtype)
        return self.inner.attend(tempered, key, value, extras)


def is_tempered(attention: nn.Module) -> bool:
    """Whatever its switch says by now: the configuration keeps what it said at first."""
    if not hasattr(attention, SWITCH) or attention.use_rope:
        return False
    return bool(getattr(attention.config, SWITCH, False))


def switch_off(attention: nn.Module) -> None:
    setattr(attention, SWITCH, False)


def tempered_port(attention: nn.Module, inner: Port, current: CurrentStep) -> TemperedPort:
    floor_scale, attn_scale = float(attention.floor_scale), float(attention.attn_scale)  # type: ignore[arg-type]
    return TemperedPort(inner, current, floor_scale, attn_scale)
