"""Takes a GGUF file into its parts and writes parts back, whatever they claim."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
FORMATS[12] = "d"
ALIGNMENT = 32


class RawTensor(NamedTuple):
    """A tensor as the head has it: sizes from the innermost on, the number of its type, its place
    behind the head."""

    name: bytes
    sizes: list[int]
    kind: int
    offset: int


class RawValue(NamedTuple):
    """A value of metadata: the number of its type, and its bytes."""

    key: bytes
    kind: int
    content: bytes


@dataclass
class GgufParts:
    """The parts of a file. `num_values` and `num_tensors` are written instead of the true counts
    where they are not None."""

    values: list[RawValue]
    tensors: list[RawTensor]
    content: bytes
    version: int = 3
    num_values: int | None = None
    num_tensors: int | None = None
    places: list[int] = field(default_factory=list)

    def index(self, key: str) -> int:
        """Return the place of a value among all."""
        return next(i for i, each in enumerate(self.values) if each.key == key.encode())

    def put(self, key: str, kind: int, content: bytes) -> None:
        """Set a value, or add one."""
        value = RawValue(key.encode(), kind, content)
        known = [i for i, each in enumerate(self.values) if each.key == value.key]
        if known:
            self.values[known[0]] = value
        else:
            self.values.append(value)

    def keys(self) -> list[str]:
        return [each.key.decode() for each in self.values]

    def written(self) -> bytes:
        """Return the file."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_values = len(self.values) if self.num_values is None else self.num_values
        head = [b"GGUF", struct.pack("<IQQ", self.version, num_tensors, num_values)]
        head += [
            string(each.key) + struct.pack("<I", each.kind) + each.content for each in self.values
        ]
        for name, sizes, kind, offset in self.tensors:
            head.append(string(name) + struct.pack("<I", len(sizes)))
            head.append(struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, offset))
        whole = b"".join(head)
        return whole + bytes(-len(whole) % ALIGNMENT) + self.content


def string(text: bytes) -> bytes:
    """Return a string as it is written."""
    return struct.pack("<Q", len(text)) + text


def number(kind: int, value: float) -> bytes:
    """Return a number as it is written."""
    return struct.pack("<" + FORMATS[kind], value)


def texts(items: list[bytes]) -> bytes:
    """Return an array of strings as it is written."""
    return struct.pack("<IQ", STRING, len(items)) + b"".join(map(string, items))


def numbers(kind: int, items: Sequence[float]) -> bytes:
    """Return an array of numbers as it is written."""
    head = struct.pack("<IQ", kind, len(items))
    return head + struct.pack(f"<{len(items)}{FORMATS[kind]}", *items)


def taken_apart(content: bytes) -> GgufParts:
    """Return the parts of a file that is right."""
    version, num_tensors, num_values = struct.unpack_from("<IQQ", content, 4)
    at = 24
    values, tensors, places = [], [], [4, 8, 16]
    for _ in range(num_values):
        places.append(at)
        key, at = _string(content, at)
        (kind,) = struct.unpack_from("<I", content, at)
        places.append(at)
        end = _end(content, at + 4, kind)
        places.append(at + 4)
        values.append(RawValue(key, kind, content[at + 4 : end]))
        at = end
    for _ in range(num_tensors):
        places.append(at)
        name, at = _string(content, at)
        (num_dims,) = struct.unpack_from("<I", content, at)
        found = struct.unpack_from(f"<{num_dims}QIQ", content, at + 4)
        places += [at, *(at + 4 + 8 * i for i in range(num_dims + 1)), at + 8 + 8 * num_dims]
        tensors.append(RawTensor(name, list(found[:num_dims]), found[-2], found[-1]))
        at += 4 + 8 * num_dims + 12
    start = -(-at // ALIGNMENT) * ALIGNMENT
    return GgufParts(values, tensors, content[start:], version, places=places)


def _string(content: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", content, at)
    return content[at + 8 : at + 8 + length], at + 8 + length


def _end(content: bytes, at: int, kind: int) -> int:
    """Return where a value ends."""
    if kind == STRING:
        return _string(content, at)[1]
    if kind != ARRAY:
        return at + struct.calcsize(FORMATS[kind])
    of: tuple[int, int] = struct.unpack_from("<IQ", content, at)
    kind, length = of
    at += 12
    if kind != STRING:
        return at + length * int(struct.calcsize(FORMATS[kind]))
    for _ in range(length):
        at = _string(content, at)[1]
    return at
