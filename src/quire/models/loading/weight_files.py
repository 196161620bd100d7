"""The size of a checkpoint's weights, from the headers of its files: of safetensors 8 bytes of
length, then JSON; of GGUF as its reader tells. No tensor is read. What will not be loaded is not
counted.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from quire.models.config import CheckpointError
from quire.models.loading.gguf.place import WEIGHTS, is_gguf_folder

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""safetensors itself refuses longer headers."""
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
LAYER = re.compile(r"\.(?:layers|h|blocks|block)\.(\d+)\.")
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `dtype` is as safetensors names it, or ggml for one in blocks."""

    name: str
    dtype: str
    num_elements: int
    num_bytes: int
    is_in_blocks: bool = False

    def bytes_as(self, dtype_bytes: int | None) -> int:
        """Return its bytes once loaded: floats take `dtype_bytes` each, unless that is None."""
        if dtype_bytes is None or not (self.dtype in FLOATS or self.is_in_blocks):
            return self.num_bytes
        return self.num_elements * dtype_bytes


def read_headers(folder: Path) -> tuple[StoredTensor, ...]:
    """Read the headers of the files that transformers would load. Raises CheckpointError."""
    if is_gguf_folder(folder):
        return tuple(_of_gguf(folder / WEIGHTS))
    return tuple(tensor for file in files_of(folder) for tensor in _tensors(file))


def _of_gguf(file: Path) -> Iterator[StoredTensor]:
    # These bring NumPy, which other files do without.
    from quire.models.loading.gguf.architectures import architecture_of
    from quire.models.loading.gguf.fields import Fields
    from quire.models.loading.gguf.header import read_header
    from quire.models.loading.gguf.names import named_tensors

    fields = Fields(read_header(file))
    for tensor, name in named_tensors(fields, architecture_of(fields)):
        in_blocks = not tensor.type.is_plain
        yield StoredTensor(name, tensor.type.name, tensor.num_elements, tensor.num_bytes, in_blocks)


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
            f"{folder} holds {len(names)} weights in FP8 ({names[0]}), which Quire does not read: "
            "serve the checkpoint that they were made from"
        )


def _is_beyond(name: str, num_layers: int | None) -> bool:
    found = LAYER.search(name)
    return num_layers is not None and found is not None and int(found[1]) >= num_layers


def files_of(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers would load. Raises CheckpointError."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if not (folder / INDEX).is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / str(name) for name in sorted(names)]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{folder / INDEX} cannot be loaded: {error!r}") from error


def _tensors(file: Path) -> list[StoredTensor]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, file.stat().st_size - LENGTH_BYTES):
                raise ValueError(f"its header would be {length} bytes long")
            header = json.loads(stream.read(length))
        return [_tensor(name, entry) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file} cannot be loaded: {error}") from error


def _tensor(name: str, entry: Mapping[str, object]) -> StoredTensor:
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError(f"{name} has no shape or no place")
    first, end = offsets
    return StoredTensor(name, str(entry["dtype"]), prod(shape), end - first)
