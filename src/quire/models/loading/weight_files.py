"""The size of a checkpoint's weights, from the headers of its files. No tensor is read. What will
not be loaded is not counted.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from quire.models.config import CheckpointError
from quire.models.loading.gguf.place import WEIGHTS, is_gguf_folder
from quire.models.loading.published.place import CONFIG, quantisation_of
from quire.models.loading.safetensors.stored_tensors import FLOATS, StoredTensor, stored_tensors

LAYER = re.compile(r"\.(?:layers|h|blocks|block)\.(\d+)\.")

FURTHER_TOKENS = "mtp."
"""The beginning of the names of layers that predict further tokens, in Qwen's and other models."""


def read_headers(folder: Path) -> tuple[StoredTensor, ...]:
    """Read the headers of the files that transformers would load, and return the weights that they
    make up. Raises CheckpointError."""
    if is_gguf_folder(folder):
        return tuple(_of_gguf(folder / WEIGHTS))
    tensors = stored_tensors(folder)
    if not (folder / CONFIG).is_file() or quantisation_of(folder) is None:
        return tensors
    from quire.models.loading.published.weights import whole_tensors  # brings torch

    return whole_tensors(folder, tensors)


def _of_gguf(file: Path) -> Iterator[StoredTensor]:
    # These bring NumPy, which other files do without.
    from quire.models.loading.gguf.architectures import architecture_of
    from quire.models.loading.gguf.blocks import form_of
    from quire.models.loading.gguf.fields import Fields
    from quire.models.loading.gguf.names import named_tensors
    from quire.models.loading.gguf.parts import read_model

    fields = Fields(read_model(file))
    for tensor, name in named_tensors(fields, architecture_of(fields)):
        kind = tensor.type
        form = None if kind.is_plain else form_of(kind)
        yield StoredTensor(
            *(name, kind.name, tensor.shape, tensor.num_bytes),
            form=form,
            block_size=kind.block_size,
        )


def weight_bytes(
    tensors: tuple[StoredTensor, ...],
    *,
    dtype_bytes: int | None,
    num_layers: int | None,
    is_tied: bool,
) -> int:
    """Return the bytes of all weights that will be loaded, their floats in `dtype_bytes` each.

    Layers beyond `num_layers` are left out, as transformers does (they predict further tokens), and
    so is an output layer that is the input's.
    """
    return sum(
        tensor.bytes_as(dtype_bytes)
        for tensor in tensors
        if not (is_tied and tensor.name.endswith("lm_head.weight"))
        and not _is_beyond(tensor.name, num_layers)
    )


def stored_float_bytes(tensors: tuple[StoredTensor, ...]) -> int | None:
    """Return the bytes of the smallest float format among the weights, or None without any."""
    return min((FLOATS[tensor.dtype] for tensor in tensors if tensor.dtype in FLOATS), default=None)


def refuse_scaled(folder: Path, tensors: tuple[StoredTensor, ...]) -> None:
    """Raise CheckpointError for float8 weights: without their scales they are other numbers."""
    names = [tensor.name for tensor in tensors if tensor.dtype.startswith("F8")]
    if names:
        raise CheckpointError(
            f"{folder} holds {len(names)} weights in FP8 ({names[0]}), which Quire reads only "
            "with their scales and a quantization_config that tells of them: serve the checkpoint "
            "that they were made from"
        )


def _is_beyond(name: str, num_layers: int | None) -> bool:
    found = LAYER.search(name)
    if name.startswith(FURTHER_TOKENS):
        return True
    return num_layers is not None and found is not None and int(found[1]) >= num_layers
