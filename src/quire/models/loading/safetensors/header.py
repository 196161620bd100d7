"""Reads the head of a safetensors file: 8 bytes of length, then JSON. Each claim is held against
the size of the file, as a stranger may have made it; no tensor is read.

Source of the format: https://github.com/huggingface/safetensors
"""

import json
import stat
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from quire.models.config import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 32_000_000
"""Read JSON can take twenty times its bytes. The heads of 150,000 tensors take 20 MB."""
DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("F4",), 4),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
        **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
        **dict.fromkeys(("U32", "I32", "F32"), 32),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    }
)
METADATA = "__metadata__"
SHOWN_CHARS = 60


class HeaderEntry(NamedTuple):
    """A tensor as a head has it; `start` and `end` are bytes behind the head."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_entries(file: Path) -> list[HeaderEntry]:
    """Return the tensors of a file in the order of their places. Raises CheckpointError, with one
    sentence that says where the file is not what it should be."""
    try:
        return _read(file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be loaded: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be loaded: {error}") from error


def shown(name: object) -> str:
    """Return untrusted text on one short line."""
    text = repr(name)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _read(file: Path) -> list[HeaderEntry]:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        num_bytes = status.st_size - LENGTH_BYTES - length
        if length < 2 or length > MAX_HEADER_BYTES or num_bytes < 0:
            raise ValueError(f"its header would be {length:,} bytes long")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    entries = [_entry(name, each) for name, each in header.items() if name != METADATA]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    _check_places(entries, num_bytes)
    return entries


def _entry(name: str, stated: object) -> HeaderEntry:
    if not isinstance(stated, dict):
        raise ValueError(f"{shown(name)} is {shown(stated)}, must be an object")
    dtype, shape, places = (stated.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"{shown(name)} has the dtype {shown(dtype)}, which safetensors has not")
    if not _are_counts(shape):
        raise ValueError(f"{shown(name)} has the shape {shown(shape)}, must be whole numbers")
    if not _are_counts(places) or len(places) != 2:
        raise ValueError(f"{shown(name)} lies at {shown(places)}, must be two whole numbers")
    start, end = places
    num_bits = prod(shape) * DTYPE_BITS[dtype]
    if num_bits != 8 * (end - start):
        raise ValueError(
            f"{shown(name)} is {dtype} {shown(shape)}, and has {shown(end - start)} bytes"
        )
    return HeaderEntry(name, dtype, tuple(shape), start, end)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _check_places(entries: list[HeaderEntry], num_bytes: int) -> None:
    """Raise ValueError unless the tensors lie side by side and fill the file."""
    if entries and entries[0].start:
        raise ValueError(f"{shown(entries[0].name)} begins at {entries[0].start:,}, must at 0")
    for before, entry in pairwise(entries):
        if entry.start != before.end:
            raise ValueError(
                f"{shown(entry.name)} begins at {shown(entry.start)}, where "
                f"{shown(before.name)} before it ends at {shown(before.end)}"
            )
    end = entries[-1].end if entries else 0
    if end > num_bytes:
        raise ValueError(
            f"it has {num_bytes:,} bytes of tensors, must have {shown(end)}: it was "
            "cut short, fetch it again"
        )
    if end < num_bytes:
        raise ValueError(f"it has {num_bytes - end:,} bytes behind its last tensor")
