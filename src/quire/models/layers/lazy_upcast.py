"""Weights that a model computes with in float32, and that stay in the 16 bits of the mapped file
that they come from: each is upcast when something computes with it, and only for that computation.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from quire.models.loading.weight_files import files_of

STORED_DTYPES = (torch.bfloat16, torch.float16)


class LazyUpcast(Tensor):
    """A float32 tensor to its users, stored as `kept`, a bfloat16 or float16 one of the same shape.

    Every operation gets its numbers upcast, by `__torch_dispatch__`.
    """

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> "LazyUpcast":
        made: LazyUpcast = torch.Tensor._make_wrapper_subclass(
            cls, kept.shape, strides=kept.stride(), dtype=torch.float32
        )
        made.kept = kept
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyUpcast({list(self.shape)}, {self.kept.dtype})"

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
            assert isinstance(lazy, LazyUpcast)
            return LazyUpcast(lazy.kept)
        # What is to be a view of a tensor from outside of inference mode has to be from there too.
        is_inference = torch.is_inference_mode_enabled() and not func.is_view
        with torch.inference_mode(is_inference):
            args, kwargs = tree_map_only(LazyUpcast, upcast, (args, kwargs or {}))
            return func(*args, **kwargs)


def upcast(tensor: Tensor) -> Tensor:
    """Return a plain float32 tensor for a `LazyUpcast`; any other tensor as it is."""
    return tensor.kept.float() if isinstance(tensor, LazyUpcast) else tensor


def narrow(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a copy of a part of `tensor`; of a `LazyUpcast` a view, that is one too."""
    if isinstance(tensor, LazyUpcast):
        return LazyUpcast(tensor.kept.narrow(dim, start, length))
    return tensor.narrow(dim, start, length).clone(memory_format=torch.contiguous_format)


class LazyStateDict(dict[str, Tensor]):
    """Weights by name, which refuse to be copied: transformers deep-copies what it is given."""

    def __deepcopy__(self, memo: object) -> "LazyStateDict":
        return self


def lazy_state_dict(folder: Path) -> LazyStateDict:
    """Return a checkpoint's weights as its files have them, 16-bit matrices as `LazyUpcast`."""
    state = LazyStateDict()
    for file in files_of(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                tensor = opened.get_tensor(name)
                is_lazy = tensor.dim() == 2 and tensor.dtype in STORED_DTYPES
                state[name] = LazyUpcast(tensor) if is_lazy else tensor
    return state


def upcast_all(module: nn.Module) -> None:
    """Replace the parameters that are still `LazyUpcast` by plain float32 ones."""
    wide: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if isinstance(parameter, LazyUpcast):
                made = nn.Parameter(upcast(parameter), requires_grad=False)
                setattr(part, name, wide.setdefault(id(parameter), made))
