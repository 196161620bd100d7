"""The tensors of a folder's safetensors files, which stay in the mapped files."""

from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.models.config import CheckpointError
from quire.models.loading.safetensors.stored_tensors import files_of
from quire.models.weights.lazy_weight import HalfWeight, LazyWeight

HALVES = (torch.bfloat16, torch.float16)


def opened_tensors(
    folder: Path, names: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor after its name, or only those of `names`. Raises safetensors' errors."""
    for file in files_of(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                if names is None or name in names:
                    yield name, opened.get_tensor(name)


def contents_of(folder: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the bytes of those tensors. Raises CheckpointError."""
    if not names:
        return {}
    try:
        return {
            name: bytes(tensor.flatten().view(torch.uint8).tolist())
            for name, tensor in opened_tensors(folder, names)
        }
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be loaded: {error}") from error


def as_loaded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a stored tensor as a model that computes in `dtype` takes it: floats in `dtype`, and
    of those a matrix in 16 bits for float32 as `LazyWeight`."""
    if tensor.dim() == 2 and tensor.dtype in HALVES and dtype == torch.float32:
        return LazyWeight(HalfWeight(tensor))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
