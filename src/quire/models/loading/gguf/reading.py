"""Reads the parts of a GGUF file's head: numbers, strings and arrays, each within the file.

The format is little-endian throughout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

STRING, ARRAY = 8, 9
NUMBERS: Mapping[int, np.dtype[Any]] = MappingProxyType(
    {
        0: np.dtype("u1"),
        1: np.dtype("i1"),
        2: np.dtype("<u2"),
        3: np.dtype("<i2"),
        4: np.dtype("<u4"),
        5: np.dtype("<i4"),
        6: np.dtype("<f4"),
        7: np.dtype("?"),
        10: np.dtype("<u8"),
        11: np.dtype("<i8"),
        12: np.dtype("<f8"),
    }
)
"""The types of single values, by their number in the file."""
LENGTH_BYTES = 8
SHOWN_CHARS = 60

Numbers = NDArray[np.generic]


def shown(name: str) -> str:
    """Return untrusted text on one short line."""
    return repr(name if len(name) <= SHOWN_CHARS else name[:SHOWN_CHARS] + "...")


class MalformedFile(ValueError):
    """The file violates its format; the text has the place and the reason."""


class Strings(Sequence[str]):
    """An array of strings, each decoded when it is asked for: a list of them would take several
    times the file's bytes."""

    def __init__(self, content: memoryview, starts: NDArray[np.uint64]) -> None:
        self._content = content
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return Cursor(self._content, int(self._starts[index])).string()

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))


class Cursor:
    """A place in the content of a file, which moves on with what is read. Raises MalformedFile."""

    def __init__(self, content: memoryview, at: int = 0) -> None:
        self.content = content
        self.at = at

    @property
    def num_left(self) -> int:
        """The bytes behind this place."""
        return len(self.content) - self.at

    def skip(self, num_bytes: int) -> int:
        """Advance by `num_bytes`, and return their offset."""
        if num_bytes > self.num_left:
            raise MalformedFile(
                f"it ends at byte {len(self.content):,}, {num_bytes:,} bytes too early"
            )
        start, self.at = self.at, self.at + num_bytes
        return start

    def unsigned(self, num_bytes: int) -> int:
        """Read an unsigned integer."""
        start = self.skip(num_bytes)
        return int.from_bytes(self.content[start : self.at], "little")

    def string(self) -> str:
        """Read a string: its length, then UTF-8."""
        start = self.skip_string()
        try:
            return str(self.content[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFile(f"the string at byte {start:,} is not UTF-8: {error}") from error

    def skip_string(self) -> int:
        """Advance by a string, and return the offset of its characters."""
        return self.skip(self.unsigned(LENGTH_BYTES))

    def value(self, kind: int) -> "bool | int | float | str | Numbers | Strings":
        """Read a value of this type."""
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array()
        number: bool | int | float = self._numbers(kind, 1)[0].item()
        return number

    def _array(self) -> "Numbers | Strings":
        kind, length = self.unsigned(4), self.unsigned(LENGTH_BYTES)
        if kind == ARRAY:
            raise MalformedFile(f"the array before byte {self.at:,} holds arrays, which none may")
        return self._strings(length) if kind == STRING else self._numbers(kind, length)

    def _numbers(self, kind: int, length: int) -> Numbers:
        dtype = NUMBERS.get(kind)
        if dtype is None:
            raise MalformedFile(
                f"the value before byte {self.at:,} is of type {kind}, which is none"
            )
        start = self.skip(length * dtype.itemsize)
        found: Numbers = np.frombuffer(self.content, dtype, length, start)
        return found

    def _strings(self, length: int) -> Strings:
        if length * LENGTH_BYTES > self.num_left:
            raise MalformedFile(
                f"the array before byte {self.at:,} would hold {length:,} strings, more than the "
                "file has bytes for"
            )
        content, size, at = self.content, len(self.content), self.at
        starts = np.empty(length, np.uint64)
        length_at = struct.Struct("<Q").unpack_from
        for i in range(length):
            if at + LENGTH_BYTES > size:
                at = size + 1
                break
            starts[i] = at
            at += LENGTH_BYTES + length_at(content, at)[0]
        if at > size:
            raise MalformedFile(f"the strings from byte {self.at:,} on end beyond the file")
        self.at = at
        return Strings(content, starts)
