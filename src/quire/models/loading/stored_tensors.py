"""The tensors of a folder's safetensors files, by their heads: a length, then JSON. No tensor is
read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from quire.models.config import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""safetensors itself refuses longer headers."""
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
QUANTISED = "quantised"
"""The dtype of a weight that was quantised before it was published."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `dtype` is as safetensors names it, or ggml for one in blocks. One of
    several parts is QUANTISED; `is_in_blocks` for both, which are floats once they are loaded."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    is_in_blocks: bool = False

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    def bytes_as(self, dtype_bytes: int | None) -> int:
        """Return its bytes once loaded: floats take `dtype_bytes` each, unless that is None."""
        if dtype_bytes is None or not (self.dtype in FLOATS or self.is_in_blocks):
            return self.num_bytes
        return self.num_elements * dtype_bytes


def stored_tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of a folder's safetensors files. Raises CheckpointError."""
    return tuple(tensor for file in files_of(folder) for tensor in _tensors(file))


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
    return StoredTensor(name, str(entry["dtype"]), tuple(shape), end - first)
