"""The weights of a checkpoint by their names in transformers, as its files keep them."""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from quire.models.layers.lazy_weight import HalfWeight, LazyWeight
from quire.models.loading.gguf.place import WEIGHTS, is_gguf_folder
from quire.models.loading.gguf.weights import read_weights
from quire.models.loading.weight_files import files_of

STORED_DTYPES = (torch.bfloat16, torch.float16)


def lazy_state(folder: Path, dtype: torch.dtype) -> "StateDict":
    """Return the weights of a checkpoint in `dtype`, as `LazyWeight` where it is stored in fewer
    bits: in the blocks of a GGUF file, or in 16 bits for float32, which safetensors are read in
    alone."""
    if is_gguf_folder(folder):
        return StateDict(read_weights(folder / WEIGHTS, dtype))
    assert dtype == torch.float32, "others are loaded by transformers"
    state = StateDict()
    for file in files_of(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                tensor = opened.get_tensor(name)
                is_lazy = tensor.dim() == 2 and tensor.dtype in STORED_DTYPES
                state[name] = LazyWeight(HalfWeight(tensor)) if is_lazy else tensor
    return state


class StateDict(dict[str, Tensor]):
    """Weights by name, which refuse to be copied: transformers deep-copies what it is given."""

    def __deepcopy__(self, memo: object) -> "StateDict":
        return self
