"""The head of a GGUF file: what it says of the model, and where its tensors lie.

Everything is held against the size of the file before it is used, so that no file, whatever it
claims, makes a read outside of it or takes more memory than its own bytes. Nothing of a tensor is
read.
"""

import mmap
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from quire.models.config import CheckpointError
from quire.models.loading.gguf.ggml_types import GGML_TYPES, GgmlType
from quire.models.loading.gguf.reading import Cursor, MalformedFile, Numbers, Strings, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 has counts of 32 bits; nothing has written it since 2023."""
MIN_PAIR_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
"""The least that a pair of metadata, and a tensor, take in the head."""
MAX_ENTRIES = 1 << 16
"""The most values of metadata, and the most tensors: thirty times those of the largest models."""
MAX_DIMS = 4
MAX_NAME_BYTES = 1 << 16
DEFAULT_ALIGNMENT = 32

Value = bool | int | float | str | Numbers | Strings


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file at `path`. `shape` is as torch has it, its last dimension the contiguous
    one; `start` counts from the file's first byte."""

    path: Path
    name: str
    type: GgmlType
    shape: tuple[int, ...]
    start: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata of a file by key, and its tensors in the order of their names there."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Sequence[GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file. Raises CheckpointError, with one sentence that names the
    faulty place."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} cannot be read: it is no file")
        if status.st_size == 0:
            raise MalformedFile("it is empty")
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _read(path, content)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except MalformedFile as error:
        raise CheckpointError(f"{path} is no GGUF file that can be served: {error}") from error


def _read(path: Path, content: memoryview) -> GgufHeader:
    if bytes(content[:4]) != MAGIC:
        raise MalformedFile(f"it does not begin with {MAGIC.decode()}")
    cursor = Cursor(content, len(MAGIC))
    _check_version(cursor.unsigned(4))
    num_tensors, num_pairs = cursor.unsigned(8), cursor.unsigned(8)
    _check_count(cursor, "tensors", num_tensors, MIN_TENSOR_BYTES)
    _check_count(cursor, "values of metadata", num_pairs, MIN_PAIR_BYTES)
    metadata: dict[str, Value] = {}
    for _ in range(num_pairs):
        key = _name(cursor, "key")
        if key in metadata:
            raise MalformedFile(f"it has the key {shown(key)} twice")
        metadata[key] = cursor.value(cursor.unsigned(4))
    tensors = [_tensor(cursor, path) for _ in range(num_tensors)]
    alignment = _alignment(metadata)
    begin = -(-cursor.at // alignment) * alignment
    return GgufHeader(path, metadata, _placed(tensors, begin, alignment, len(content)))


def _check_version(version: int) -> None:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in VERSIONS and swapped in VERSIONS:
        raise MalformedFile("its numbers are big-endian: convert it for this machine")
    if version not in VERSIONS:
        raise MalformedFile(f"it is of version {version}, must be one of {VERSIONS}")


def _check_count(cursor: Cursor, what: str, count: int, min_bytes: int) -> None:
    if count * min_bytes > cursor.num_left:
        raise MalformedFile(f"it would have {count:,} {what}, more than it has bytes for")
    if count > MAX_ENTRIES:
        raise MalformedFile(f"it has {count:,} {what}, must be at most {MAX_ENTRIES:,}")


def _name(cursor: Cursor, what: str) -> str:
    begin = cursor.at
    name = cursor.string()
    if cursor.at - begin > MAX_NAME_BYTES:
        raise MalformedFile(f"the {what} at byte {begin:,} is longer than {MAX_NAME_BYTES:,} bytes")
    return name


def _tensor(cursor: Cursor, path: Path) -> GgufTensor:
    name = _name(cursor, "name of a tensor")
    num_dims = cursor.unsigned(4)
    if not 1 <= num_dims <= MAX_DIMS:
        raise MalformedFile(f"{shown(name)} has {num_dims:,} dimensions, must be 1 to {MAX_DIMS}")
    shape = tuple(cursor.unsigned(8) for _ in range(num_dims))[::-1]
    type_id, start = cursor.unsigned(4), cursor.unsigned(8)
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        raise MalformedFile(f"{shown(name)} is of the type {type_id}, which ggml does not have")
    if 0 in shape or shape[-1] % kind.block_size:
        raise MalformedFile(
            f"{shown(name)} is {list(shape)}: the last must be a multiple of {kind.block_size}, "
            f"the block of {kind.name}, and none 0"
        )
    return GgufTensor(path, name, kind, shape, start)


def _alignment(metadata: Mapping[str, Value]) -> int:
    stated = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(stated) is not int or stated < 1 or stated & (stated - 1):
        raise MalformedFile(f"general.alignment is {shown(str(stated))}, must be a power of two")
    return stated


def _placed(
    tensors: Sequence[GgufTensor], begin: int, alignment: int, size: int
) -> list[GgufTensor]:
    """Return the tensors with their places in the file, of which no two overlap."""
    end, before = 0, "the head"
    names = set()
    for tensor in sorted(tensors, key=lambda each: each.start):
        named = shown(tensor.name)
        if tensor.name in names:
            raise MalformedFile(f"it has the tensor {named} twice")
        names.add(tensor.name)
        if tensor.start % alignment:
            raise MalformedFile(f"{named} begins at {tensor.start:,}, no multiple of {alignment}")
        if tensor.start < end:
            raise MalformedFile(f"{named} begins at {tensor.start:,}, within {before}")
        end, before = tensor.start + tensor.num_bytes, named
        if begin + end > size:
            raise MalformedFile(
                f"{named} ends at byte {begin + end:,}, and the file at {size:,}: it was cut "
                "short, fetch it again"
            )
    return [replace(tensor, start=begin + tensor.start) for tensor in tensors]
