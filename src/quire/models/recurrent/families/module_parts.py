"""Typed access to the attributes of transformers' modules."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quire.models.config import UnsupportedModel

SILU = frozenset({"silu", "swish"})


def count(part: nn.Module, name: str) -> int:
    """Return an attribute of the module that is an integer. Raises UnsupportedModel."""
    value: object = getattr(part, name, None)
    if not isinstance(value, int):
        raise refusal(part, f"the {name} of their {type(part).__name__} is {value}, not an integer")
    return value


def conv_weights(part: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight [channels, kernel_size] and the bias of the module's convolution."""
    conv = part.get_submodule("conv1d")
    bias: object = getattr(conv, "bias", None)
    return conv.get_parameter("weight").squeeze(1), bias if isinstance(bias, Tensor) else None


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Return rows [T, widths of all] of `parts` [T, width]: a view where they lie so in memory, as
    the outputs of a joined product do."""
    first, place = parts[0], parts[0].storage_offset()
    storage = first.untyped_storage().data_ptr()
    for each in parts:
        if (each.stride(), each.storage_offset()) != ((first.stride(0), 1), place):
            return torch.cat(list(parts), dim=-1)
        if each.untyped_storage().data_ptr() != storage:
            return torch.cat(list(parts), dim=-1)
        place += each.shape[1]
    width = place - first.storage_offset()
    return first.as_strided((len(first), width), first.stride())


def refuse_other_activation(part: nn.Module) -> None:
    """Raise UnsupportedModel unless the module's convolution goes through SiLU."""
    activation: object = getattr(part, "activation", None)
    if activation not in SILU:
        raise refusal(
            part,
            f"their {type(part).__name__} has a convolution with the activation {activation!r}, "
            "where 'silu' is supported",
        )


def refusal(part: nn.Module, why: str) -> UnsupportedModel:
    """Return the refusal of a model with the module. Its class is one of transformers', whose
    package has the name of the family."""
    return UnsupportedModel(type(part).__module__.split(".")[-2], why)
