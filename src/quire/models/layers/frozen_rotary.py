"""Rotary modules that ask neither the device nor the host, for those that do.

LongRoPE (arXiv 2402.13753) has one table of frequencies for short contexts and one for long ones,
and transformers looks at the largest position of each step to choose. Models are served up to the
length of the short table, so it always holds. Other modules work their frequencies out anew on the
host for each step, which gives the same numbers each time.
"""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.models.config import FORWARD_ERRORS
from quire.models.graphs.crossings import HostTransferDetector

logger = logging.getLogger(__name__)

META = torch.device("meta")
MAX_CHECKED = 4096
"""The most positions that are compared, spread over all that a model is served with."""


@dataclass(frozen=True, slots=True)
class FrozenRotary:
    """Implements the forward of `module` with the frequencies that it has now.

    scales: what cosines and sines are multiplied by, for each kind of layer; None is the kind of
    modules that know no kinds.
    """

    module: nn.Module
    scales: Mapping[str | None, float]

    def __call__(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1, T, size] in the dtype of `x`, for `position_ids` [1, T]."""
        name = "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"
        halves = position_ids[..., None].float() * self.module.get_buffer(name)
        angles, scale = torch.cat((halves, halves), dim=-1), self.scales[layer_type]
        return (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)


def rotary_kinds(part: nn.Module) -> list[str | None]:
    """Return the kinds of layer for which a rotary module has frequencies; none for others."""
    names = [name for name, _ in part.named_buffers(recurse=False)]
    if not hasattr(part, "rope_type"):
        return []
    if isinstance(part.rope_type, dict):
        return [kind for kind in part.rope_type if f"{kind}_inv_freq" in names]
    return [None] if "inv_freq" in names else []


@torch.inference_mode()
def freeze_rotary(module: nn.Module, max_model_len: int, device: torch.device) -> None:
    """Replace the forward of each rotary module in `module` that asks the device or the host, if
    `FrozenRotary` gives the same bits for positions below `max_model_len`."""
    num_checked = min(max_model_len, MAX_CHECKED)
    # falling, so that a module that counts instead of reading them is not taken for another
    positions = torch.linspace(max_model_len - 1, 0, num_checked, device=device).long()[None]
    for part in list(module.modules()):
        kinds = rotary_kinds(part)
        if not kinds or not _asks(part, kinds):
            continue
        frozen = _frozen(part, kinds, device)
        is_frozen = frozen is not None and _agree(part, frozen, positions)
        if is_frozen:
            setattr(part, "forward", frozen)  # noqa: B010
        name = type(part).__name__
        logger.info("%s %s", name, "has fixed frequencies" if is_frozen else "asks at each step")


def _asks(part: nn.Module, kinds: list[str | None]) -> bool:
    """Return whether numbers pass between host and device when the module runs."""
    on_meta = copy.deepcopy(part).to(META)
    x, positions = torch.empty(1, 1, 1, device=META), torch.zeros(1, 1, device=META).long()
    with HostTransferDetector(META.type) as crossings:
        try:
            for kind in kinds:
                _call(on_meta, x, positions, kind)
        except FORWARD_ERRORS:
            return True
    return bool(crossings.places)


def _frozen(part: nn.Module, kinds: list[str | None], device: torch.device) -> FrozenRotary | None:
    """Return the candidate, whose scales are the cosines of the first position."""
    x, first = torch.empty(1, 1, 1, device=device), torch.zeros(1, 1, device=device).long()
    try:
        scales = {kind: float(_call(part, x, first, kind)[0].flatten()[0]) for kind in kinds}
    except FORWARD_ERRORS:
        return None
    return FrozenRotary(part, scales)


def _agree(part: nn.Module, frozen: FrozenRotary, positions: Tensor) -> bool:
    """Return whether both give the same bits, in float32 and bfloat16."""
    try:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.empty(1, 1, 1, dtype=dtype, device=positions.device)
            for kind in frozen.scales:
                expected = _call(part, x, positions, kind)
                found = frozen(x, positions, kind)
                if not all(map(torch.equal, found, expected)):
                    return False
    except FORWARD_ERRORS:
        return False
    return True


def _call(part: nn.Module, x: Tensor, positions: Tensor, kind: str | None) -> tuple[Tensor, Tensor]:
    cos, sin = part(x, positions) if kind is None else part(x, positions, kind)
    return cos, sin
