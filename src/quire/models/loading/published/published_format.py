"""The parts of a format in which weights are published.

A new format is a file with a class that is a `PublishedFormat`, a function that makes it of the
settings in a checkpoint's configuration, and a line in `FORMATS` (`place.py`). Nothing else knows
the format by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import OpenedWeight

Parts = Mapping[str, Tensor]
"""The tensors that a weight is stored in, by the names that its format has for them."""


class UnsupportedFormat(ValueError):
    """Settings or tensors that are not read: what is wrong with them, and what would be right, in
    words that follow the name of the checkpoint or the weight."""


class PartOutline(NamedTuple):
    """The dtype of a stored tensor, as safetensors names it, and its shape; its bytes where the
    format needs them beforehand."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes = b""


class WeightPart(NamedTuple):
    """The weight that a stored tensor belongs to, by its name in transformers, and the part of it
    that it is. `is_telling`: the shape of the weight depends on its bytes, which are few."""

    weight: str
    part: str
    is_telling: bool = False


UNUSED = WeightPart("", "")
"""The place of a tensor that changes no weight, as the scale of activations."""


class PublishedFormat(Protocol):
    """One format, with the settings of one checkpoint."""

    def place(self, name: str) -> WeightPart | None:
        """Return the place of the tensor with this name; None for an unquantized weight, and UNUSED
        for an ignored tensor.

        A weight with a single part of its own name is also unquantized.
        """

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        """Return the shape of the weight of that name by those of its parts. Raises
        UnsupportedFormat for parts that are missing, too many, or do not fit each other: afterwards
        `unpacked` cannot fail."""
        ...

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        """Return the weight of that name, in small integers or else in float32."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedWeight:
    """A weight that stays in the parts of its file, and has `dtype` for its users."""

    shape: torch.Size
    dtype: torch.dtype
    parts: Parts
    unpacked: Callable[[Parts], GroupedWeight | Tensor]

    def values(self) -> Tensor:
        found = self.unpacked(self.parts)
        values = found.values() if isinstance(found, GroupedWeight) else found
        return values.to(self.dtype)

    def grouped(self) -> GroupedWeight | None:
        found = self.unpacked(self.parts)
        return found.with_halves() if isinstance(found, GroupedWeight) else None

    def narrow(self, dim: int, start: int, length: int) -> OpenedWeight | None:
        whole = self.at_hand()
        return None if whole is self else whole.narrow(dim, start, length)

    def at_hand(self) -> "OpenedWeight | PublishedWeight":
        whole = self.grouped()
        return self if whole is None else OpenedWeight(whole, self.dtype)
