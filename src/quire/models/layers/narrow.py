"""Weights that a model computes with in float32 and that lie in two bytes each, in the file they
come from: nothing more is taken up until somebody computes with one, and then for that one alone.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from quire.models.loading.weight_files import files_of

NARROW = (torch.bfloat16, torch.float16)


class Narrow(Tensor):
    """To everyone a float32 tensor: whatever is computed with it is computed with its numbers
    widened."""

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> "Narrow":
        made: Narrow = torch.Tensor._make_wrapper_subclass(
            cls, kept.shape, strides=kept.stride(), dtype=torch.float32
        )
        made.kept = kept
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Narrow({list(self.shape)}, {self.kept.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: "OpOverload[..., object]",
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            (narrow,) = args
            assert isinstance(narrow, Narrow)
            return Narrow(narrow.kept)
        # What is to be a view of a tensor from outside of inference mode has to be from there too.
        is_inference = torch.is_inference_mode_enabled() and not func.is_view
        with torch.inference_mode(is_inference):
            args, kwargs = tree_map_only(Narrow, widened, (args, kwargs or {}))
            return func(*args, **kwargs)


def widened(tensor: Tensor) -> Tensor:
    return tensor.kept.float() if isinstance(tensor, Narrow) else tensor


class State(dict[str, Tensor]):
    """Weights by name. transformers copies what it is given, these it may not."""

    def __deepcopy__(self, memo: object) -> "State":
        return self


def narrow_state(folder: Path) -> State:
    """All weights of a checkpoint as they lie in its files, matrices of two bytes a number as
    `Narrow`."""
    state = State()
    for file in files_of(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                tensor = opened.get_tensor(name)
                is_narrow = tensor.dim() == 2 and tensor.dtype in NARROW
                state[name] = Narrow(tensor) if is_narrow else tensor
    return state


def widen_all(module: nn.Module) -> None:
    """What is still narrow becomes plain float32."""
    wide: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if isinstance(parameter, Narrow):
                made = nn.Parameter(widened(parameter), requires_grad=False)
                setattr(part, name, wide.setdefault(id(parameter), made))
