"""The tensors of a folder's safetensors files, by their heads. No tensor is read."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from quire.models.config import CheckpointError
from quire.models.loading.safetensors.header import read_entries, shown
from quire.models.weights.group_form import GroupForm

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
QUANTISED = "quantised"
"""The dtype of a weight that was quantised before it was published."""
PLAIN_NAME = re.compile(r"[^/\\\0]{1,243}\.safetensors")
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; `dtype` is as safetensors names it, or ggml for one in blocks. One of
    several parts is QUANTISED; `is_in_blocks` for both, which are floats once they are loaded.

    form, block_size: of one that is stored in groups, and how many of its columns stay together.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    form: GroupForm | None = None
    block_size: int = 1

    @property
    def is_in_blocks(self) -> bool:
        return self.form is not None or self.dtype == QUANTISED

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
    return tuple(_stored(files_of(folder)))


def files_of(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers would load, all of them in the folder. Raises
    CheckpointError."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        stated = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} cannot be loaded: {error}") from error
    placed = stated.get("weight_map") if isinstance(stated, dict) else None
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{index} cannot be loaded: it has no weight_map of names to files")
    for name, file in placed.items():
        if not isinstance(file, str) or not PLAIN_NAME.fullmatch(file):
            raise CheckpointError(
                f"{index} places {shown(name)} in {shown(file)}, must be the name of a safetensors "
                "file beside it"
            )
    return [folder / file for file in sorted(set(placed.values()))]


def _stored(files: list[Path]) -> Iterator[StoredTensor]:
    """Yield the tensors of safetensors files, each of which is in one of them."""
    places: dict[str, Path] = {}
    for file in files:
        for entry in read_entries(file):
            other = places.setdefault(entry.name, file)
            if other is not file:
                raise CheckpointError(
                    f"{file} cannot be loaded: {shown(entry.name)} is in {other.name} too"
                )
            num_bytes = entry.end - entry.start
            yield StoredTensor(entry.name, entry.dtype, entry.shape, num_bytes)
