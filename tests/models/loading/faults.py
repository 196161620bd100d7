"""Faults that a check at load must see: two of a family's code, three of how Quire calls it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from quire.models.batch import Batch
from quire.models.hf import HFModel, PagedAttentionHook

Plant = Callable[[pytest.MonkeyPatch, nn.Module], None]


def mix_rows(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> None:
    """Let each MLP add half of the row before to every row."""

    def add_row_before(part: nn.Module, args: object, out: Tensor) -> Tensor:
        return out + 0.5 * out.roll(1, dims=-2)

    for part in module.modules():
        if type(part).__name__.endswith("MLP"):
            part.register_forward_hook(add_row_before)


def ignore_positions(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> None:
    """Take a token's place in the row for its position."""
    rotary = module.get_submodule("model.rotary_emb")
    ordinary = type(rotary).forward

    def blind(self: nn.Module, x: Tensor, position_ids: Tensor, *rest: object) -> object:
        places = torch.arange(position_ids.shape[-1], device=position_ids.device)
        return ordinary(self, x, places.expand_as(position_ids), *rest)

    monkeypatch.setattr(type(rotary), "forward", blind)


def narrow_mask(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> None:
    """Let every layer see two tokens only."""
    _with_layer(monkeypatch, window_size=2)


def double_scale(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> None:
    """Scale the scores of every layer twice as much."""
    _with_layer(monkeypatch, scale=2.0)


def shift_slots(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> None:
    """Write the keys and values of each token where the next one's belong."""
    ordinary = HFModel.forward

    def shifted(self: HFModel, batch: Batch) -> Tensor:
        slots = tuple(each.roll(1) for each in batch.slots)
        return ordinary(self, replace(batch, slots=slots))

    monkeypatch.setattr(HFModel, "forward", shifted)


def _with_layer(
    monkeypatch: pytest.MonkeyPatch, *, window_size: int | None = None, scale: float = 1.0
) -> None:
    """Let layers attend with another window, and scores times `scale`."""
    ordinary = PagedAttentionHook.attend

    def attend(
        self: PagedAttentionHook,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        extras: Mapping[str, object],
    ) -> Tensor:
        layer = replace(
            self.layer,
            window_size=window_size or self.layer.window_size,
            scale=scale * self.layer.scale,
        )
        return ordinary(replace(self, layer=layer), query, key, value, extras)

    monkeypatch.setattr(PagedAttentionHook, "attend", attend)


IN_MODULES: Mapping[str, Plant] = {
    "rows are mixed": mix_rows,
    "positions are ignored": ignore_positions,
}
"""Planted before the module's own attention is heard."""
IN_CALLS: Mapping[str, Plant] = {
    "masks are narrow": narrow_mask,
    "scales are doubled": double_scale,
    "slots are shifted": shift_slots,
}
