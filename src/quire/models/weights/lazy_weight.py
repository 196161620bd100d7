"""Weights that stay as the mapped file has them, in fewer bits than a model computes with: each is
widened when something computes with it, and only for that computation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from quire.models.weights.group_form import GroupForm
from quire.models.weights.grouped_weight import GroupedWeight, join_groups

CPU = torch.device("cpu")


class StoredWeight(Protocol):
    """A weight as a file keeps it."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it has for its users."""
        ...

    def values(self) -> Tensor:
        """Return its numbers in that dtype."""
        ...

    def grouped(self) -> GroupedWeight | None:
        """Return its integers and their scales; None where it is stored as plain numbers."""

    def narrow(self, dim: int, start: int, length: int) -> "StoredWeight | None":
        """Return a view of a part of it; None where a part cannot stay as it is stored."""
        ...

    def at_hand(self) -> "StoredWeight":
        """Return the same weight, of which any rows are quickly had: taken apart once for all of
        them where each would have to be found in the whole."""
        ...


@dataclass(frozen=True, slots=True)
class HalfWeight:
    """A float32 weight that is stored as `kept`, in bfloat16 or float16."""

    kept: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.kept.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def values(self) -> Tensor:
        return self.kept.float()

    def grouped(self) -> None:
        """Return None: each number stands for itself."""

    def narrow(self, dim: int, start: int, length: int) -> "HalfWeight":
        return HalfWeight(self.kept.narrow(dim, start, length))

    def at_hand(self) -> "HalfWeight":
        return self


@dataclass(frozen=True, slots=True)
class OpenedWeight:
    """A weight [..., N, K] of integers that lie in memory."""

    weight: GroupedWeight
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.weight.numbers.shape

    def values(self) -> Tensor:
        return self.weight.values().to(self.dtype)

    def grouped(self) -> GroupedWeight:
        return self.weight

    def narrow(self, dim: int, start: int, length: int) -> "OpenedWeight | None":
        part = self.weight.narrow(dim, start, length)
        return None if part is None else OpenedWeight(part, self.dtype)

    def at_hand(self) -> "OpenedWeight":
        return self


class LazyWeight(Tensor):
    """A plain tensor to its users, kept as `stored` whatever the device is that it has for them.

    Every operation but a move gets its numbers, by `__torch_dispatch__`.
    """

    stored: StoredWeight

    @staticmethod
    def __new__(cls, stored: StoredWeight, device: torch.device = CPU) -> "LazyWeight":
        made: LazyWeight = torch.Tensor._make_wrapper_subclass(
            cls, stored.shape, dtype=stored.dtype, device=device
        )
        made.stored = stored
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyWeight({list(self.shape)}, {type(self.stored).__name__})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: "OpOverload[..., object]",
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            (lazy,) = args
            assert isinstance(lazy, LazyWeight)
            return LazyWeight(lazy.stored, lazy.device)
        if func is torch.ops.aten._to_copy.default and kwargs is not None:
            (moved,) = args
            assert isinstance(moved, LazyWeight)
            if kwargs.get("dtype") in (None, moved.dtype) and "device" in kwargs:
                return LazyWeight(moved.stored, torch.device(str(kwargs["device"])))
        # What is to be a view of a tensor from outside of inference mode has to be from there too.
        is_inference = torch.is_inference_mode_enabled() and not func.is_view
        with torch.inference_mode(is_inference):
            args, kwargs = tree_map_only(LazyWeight, widened, (args, kwargs or {}))
            return func(*args, **kwargs)


def form_of(stored: StoredWeight) -> GroupForm | None:
    """Return the form of a weight that is stored in groups, None for any other."""
    row = stored.narrow(0, 0, 1)
    grouped = None if row is None else row.grouped()
    return None if grouped is None else grouped.form


def widened(tensor: Tensor) -> Tensor:
    """Return a plain tensor for a `LazyWeight`; any other tensor as it is."""
    return tensor.stored.values().to(tensor.device) if isinstance(tensor, LazyWeight) else tensor


def narrow(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a copy of a part of `tensor`; of a `LazyWeight` a view, that is one too, where a part
    of it can be."""
    if isinstance(tensor, LazyWeight):
        part = tensor.stored.narrow(dim, start, length)
        if part is not None:
            return LazyWeight(part, tensor.device)
    plain = widened(tensor).narrow(dim, start, length)
    return plain.clone(memory_format=torch.contiguous_format)


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return rows of one weight one after another, in a tensor of their own; those of a
    `LazyWeight` stay as they are stored where that can be."""
    stored = [part.stored for part in parts if isinstance(part, LazyWeight)]
    if len(parts) == 1:
        return parts[0]
    if len(stored) == len(parts):
        halves = [each.kept for each in stored if isinstance(each, HalfWeight)]
        if len(halves) == len(parts):
            return LazyWeight(HalfWeight(torch.cat(halves)), parts[0].device)
        grouped = [found for each in stored if (found := each.grouped()) is not None]
        if len(grouped) == len(parts):
            whole = OpenedWeight(join_groups(grouped), parts[0].dtype)
            return LazyWeight(whole, parts[0].device)
    return torch.cat([widened(part) for part in parts])


def widen_all(module: nn.Module) -> None:
    """Replace the parameters that are still `LazyWeight` by plain ones."""
    wide: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if isinstance(parameter, LazyWeight):
                made = nn.Parameter(widened(parameter), requires_grad=False)
                setattr(part, name, wide.setdefault(id(parameter), made))
