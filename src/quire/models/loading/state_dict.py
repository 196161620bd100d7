"""The weights of a checkpoint by their names in transformers, as its files keep them."""

from pathlib import Path

import torch
from torch import Tensor

from quire.models.loading.gguf.place import WEIGHTS, is_gguf_folder
from quire.models.loading.gguf.weights import read_weights
from quire.models.loading.published.place import quantisation_of
from quire.models.loading.published.weights import format_of, read_published
from quire.models.loading.safetensors.opened_tensors import as_loaded, opened_tensors


def has_parts(folder: Path) -> bool:
    """Return whether the weights of a folder lie there in parts that transformers does not read as
    Quire does. Raises CheckpointError."""
    return is_gguf_folder(folder) or quantisation_of(folder) is not None


def lazy_state(folder: Path, dtype: torch.dtype) -> "StateDict":
    """Return the weights of a checkpoint in `dtype`, as `LazyWeight` where it is stored in fewer
    bits: in the blocks of a GGUF file, in the parts of a published format, or in 16 bits for
    float32. Raises CheckpointError."""
    if is_gguf_folder(folder):
        return StateDict(read_weights(folder / WEIGHTS, dtype))
    form = format_of(folder)
    if form is not None:
        return StateDict(read_published(folder, form, dtype))
    return StateDict((name, as_loaded(each, dtype)) for name, each in opened_tensors(folder))


class StateDict(dict[str, Tensor]):
    """Weights by name, which refuse to be copied: transformers deep-copies what it is given."""

    def __deepcopy__(self, memo: object) -> "StateDict":
        return self
