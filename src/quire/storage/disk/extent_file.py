"""The file of an extent: blocks that follow one another in a chain, each of which can be read and
is checked by itself.

    magic, format, sizes, checksum of these | a header for each block | a row for each block

Headers are as `block_header` says, and all equally long. A file is written under another name and
renamed. It is not synced: after a power cut it may be torn or empty, which costs the blocks whose
checksums tell it, and no others. The one change to a file that is there is that headers are
overwritten by zeros: these blocks are erased.
"""

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from xxhash import xxh3_64_digest

from quire.storage.disk.block_header import CHECKSUM_BYTES, checksum_of, key_in

MAGIC = b"QUIRE-KV"
FORMAT = 2
"""The version of the file, and of the order of the bytes in a row."""
FILE_MODE = 0o600
_SIZES = struct.Struct("<8sHHIQ")
HEAD_BYTES = _SIZES.size + 8
"""The bytes before the headers of blocks."""


class LookupOutcome(Enum):
    """The outcomes of a look for a block. One that is BAD is here and cannot be used."""

    WHOLE = auto()
    MISSING = auto()
    BAD = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """A file of blocks: its path below the folder of all, its bytes, and the keys of its blocks,
    which are empty where a block is not of use. An entry is a header with its checksum.
    """

    name: str
    num_bytes: int
    entry_bytes: int
    row_bytes: int
    keys: tuple[bytes, ...]

    @property
    def num_blocks(self) -> int:
        return len(self.keys)

    def entry_offset(self, position: int) -> int:
        """Return where the header of a block begins, or the first row if there is no such block."""
        return HEAD_BYTES + position * self.entry_bytes

    def row_offset(self, position: int) -> int:
        """Return the offset of a block's row."""
        return self.entry_offset(len(self.keys)) + position * self.row_bytes


class StoredBlock(NamedTuple):
    """The place of a block in a file: its header with the checksum, and its row."""

    path: str
    entry_offset: int
    entry_bytes: int
    row_offset: int
    row_bytes: int


class Block(NamedTuple):
    """A block that is written or read: its key, its header without the zeros behind it, and its
    row."""

    key: bytes
    header: bytes
    row: memoryview


class BlockRequest(NamedTuple):
    """A block that is wanted of an extent, by its position there."""

    position: int
    block: Block


def extent_of(name: str, blocks: Sequence[Block]) -> Extent:
    """Return the extent that a file of these blocks is, whose rows are equally long."""
    entry_bytes = max(len(block.header) for block in blocks) + CHECKSUM_BYTES
    row_bytes = len(blocks[0].row)
    num_bytes = HEAD_BYTES + len(blocks) * (entry_bytes + row_bytes)
    keys = tuple(block.key for block in blocks)
    return Extent(name, num_bytes, entry_bytes, row_bytes, keys)


def without_keys(name: str, num_bytes: int, extent: Extent | None) -> Extent:
    """Return an extent of another model, whose blocks are not found; it counts as one block if it
    cannot be read."""
    if extent is None:
        return Extent(name, num_bytes, 0, 0, (b"",))
    return replace(extent, keys=(b"",) * extent.num_blocks)


def write_extent(path: str, temporary: str, extent: Extent, blocks: Sequence[Block]) -> None:
    """Write a file at once or not at all. Raises OSError; then `temporary` is gone, where that can
    be done."""
    head = [_head(extent)]
    for block in blocks:
        header = _padded(block.header, extent)
        head += (header, checksum_of(header, block.row))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        try:
            _write_all(descriptor, [memoryview(b"".join(head)), *(each.row for each in blocks)])
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # else a later scan finds it
        raise


def read_extent(path: str, name: str) -> Extent | None:
    """Return the extent in a file without its rows, None if there is none. A block whose row is not
    there as a whole is left out. Raises OSError where the disk fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        num_bytes = os.fstat(descriptor).st_size
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if len(head) < HEAD_BYTES or head[_SIZES.size :] != xxh3_64_digest(head[: _SIZES.size]):
            return None
        magic, form, entry_bytes, num_blocks, row_bytes = _SIZES.unpack_from(head)
        first_row = HEAD_BYTES + num_blocks * entry_bytes
        if (magic, form) != (MAGIC, FORMAT) or num_bytes < first_row:
            return None
        table = memoryview(os.pread(descriptor, first_row - HEAD_BYTES, HEAD_BYTES))
    finally:
        os.close(descriptor)
    num_whole = min((num_bytes - first_row) // row_bytes, num_blocks)
    starts = (position * entry_bytes for position in range(num_whole))
    keys = [key_in(table[start : start + entry_bytes]) for start in starts]
    keys += [b""] * (num_blocks - num_whole)
    return Extent(name, num_bytes, entry_bytes, row_bytes, tuple(keys))


def read_blocks(path: str, extent: Extent, asked: Sequence[BlockRequest]) -> list[LookupOutcome]:
    """Read blocks, in the order of their positions, into their rows. A row means nothing unless
    its answer is WHOLE. Raises OSError where the disk fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return [LookupOutcome.MISSING] * len(asked)
    try:
        return [
            found for run in _runs(asked) for found in _read_run(descriptor, extent, asked[run])
        ]
    finally:
        os.close(descriptor)


def is_whole(block: Block, entry: bytes) -> bool:
    """Return whether an entry is that of the block with this row."""
    header = block.header.ljust(len(entry) - CHECKSUM_BYTES, b"\0")
    return entry == header + checksum_of(header, block.row)


def erase_blocks(path: str, extent: Extent, positions: Sequence[int]) -> None:
    """Erase blocks of a file, so that no process finds them. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        num_bytes = os.fstat(descriptor).st_size
        for position in positions:
            offset = extent.entry_offset(position)
            if offset + extent.entry_bytes <= num_bytes:
                os.pwrite(descriptor, bytes(extent.entry_bytes), offset)
    finally:
        os.close(descriptor)


def _head(extent: Extent) -> bytes:
    sizes = _SIZES.pack(MAGIC, FORMAT, extent.entry_bytes, extent.num_blocks, extent.row_bytes)
    return sizes + xxh3_64_digest(sizes)


def _padded(header: bytes, extent: Extent) -> bytes:
    return header.ljust(extent.entry_bytes - CHECKSUM_BYTES, b"\0")


def _runs(asked: Sequence[BlockRequest]) -> list[slice]:
    """Return the slices of `asked` whose blocks are adjacent in the file."""
    starts = [
        at for at, each in enumerate(asked) if not at or each.position != asked[at - 1].position + 1
    ]
    return [slice(*pair) for pair in zip(starts, [*starts[1:], len(asked)], strict=True)]


def _read_run(
    descriptor: int, extent: Extent, asked: Sequence[BlockRequest]
) -> list[LookupOutcome]:
    """Read blocks that are side by side."""
    first, width = asked[0].position, extent.entry_bytes
    entries = os.pread(descriptor, width * len(asked), extent.entry_offset(first))
    if any(len(each.block.row) != extent.row_bytes for each in asked):
        return [LookupOutcome.BAD] * len(asked)
    rows = [each.block.row for each in asked]
    num_whole = _read_rows(descriptor, rows, extent.row_offset(first)) // extent.row_bytes
    found = []
    for number, each in enumerate(asked):
        entry = entries[number * width : (number + 1) * width]
        if entry == bytes(width):
            found.append(LookupOutcome.MISSING)
            continue
        is_good = number < num_whole and is_whole(each.block, entry)
        found.append(LookupOutcome.WHOLE if is_good else LookupOutcome.BAD)
    return found


def _read_rows(descriptor: int, rows: Sequence[memoryview], offset: int) -> int:
    """Fill rows one after the other; return the bytes that were there."""
    left, num_read = list(rows), 0
    while left:
        num_more = os.preadv(descriptor, left, offset + num_read)
        if num_more == 0:
            break
        left, num_read = _behind(left, num_more), num_read + num_more
    return num_read


def _write_all(descriptor: int, parts: Sequence[memoryview]) -> None:
    left = list(parts)
    while left:
        left = _behind(left, os.writev(descriptor, left))


def _behind(parts: Sequence[memoryview], num_bytes: int) -> list[memoryview]:
    """Return the rest of the parts after the first `num_bytes`."""
    left = []
    for part in parts:
        taken = min(num_bytes, len(part))
        num_bytes -= taken
        if taken < len(part):
            left.append(part[taken:])
    return left
