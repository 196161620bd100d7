"""Canonical CBOR (RFC 8949, section 4.2) of the few kinds of values that block hashes are made
of.
"""

from collections.abc import Sequence
from typing import TypeAlias

Value: TypeAlias = "int | bytes | str | Sequence[Value] | None"

NULL = b"\xf6"
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = range(5)
_WIDTHS = ((24, 1, 1 << 8), (25, 2, 1 << 16), (26, 4, 1 << 32), (27, 8, 1 << 64))
_INLINE = 24


def encode(value: Value) -> bytes:
    """Return the encoding of `value`. Raises ValueError for an integer of more than 64 bits."""
    if value is None:
        return NULL
    if isinstance(value, int):
        return _head(_NEGATIVE, -1 - value) if value < 0 else _head(_UNSIGNED, value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(_TEXT, len(text)) + text
    return array_of([encode(each) for each in value])


def array_of(encoded: Sequence[bytes]) -> bytes:
    """Return the encoding of the array whose items are encoded already."""
    return _head(_ARRAY, len(encoded)) + b"".join(encoded)


def _head(major: int, number: int) -> bytes:
    """Return a major type with its number, in as few bytes as hold it."""
    if number < _INLINE:
        return bytes((major << 5 | number,))
    for code, width, limit in _WIDTHS:
        if number < limit:
            return bytes((major << 5 | code,)) + number.to_bytes(width, "big")
    raise ValueError(f"{number} does not fit into 64 bits")
