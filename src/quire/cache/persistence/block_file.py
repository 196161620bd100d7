"""The file of one block, which is whole and says all that its bytes depend on, or is not used.

    magic, sizes | fingerprint | key | parent | tokens | extra | checksum | row

A reader knows every byte before the checksum, so the header is compared as a whole: a file of other
tokens, another tenant or another model never is the block that was asked for. The checksum is over
all that is before it and the row. It tells damage, not forgery: whoever may write the folder is
trusted.

A file is written under another name and renamed. It is not synced: after a power cut it may be torn
or empty, which its length and checksum tell.
"""

import os
import struct
from collections.abc import Sequence
from enum import Enum, auto
from hashlib import sha256
from typing import NamedTuple

from xxhash import xxh3_128

from quire.cache.block_hash import group_key
from quire.cache.chain import Content

MAGIC = b"QUIRE-KV"
FORMAT = 1
"""The version of the file, and of the order of the bytes in a row."""
CHECKSUM_BYTES = 16
FILE_MODE = 0o600
_SIZES = struct.Struct("<8sIHHIQ")


class Found(Enum):
    """The outcomes of a look for a block's file. What is BAD is here and cannot be used."""

    WHOLE = auto()
    MISSING = auto()
    BAD = auto()


class BlockIdentity(NamedTuple):
    """All that tells one block of a model from others: its key and its parent's digest, its tokens
    as bytes, and a digest of its extra keys, which may hold a tenant's salt.
    """

    key: bytes
    parent: bytes
    tokens: bytes
    extra: bytes


def identity_of(content: Content, group: int, root: bytes) -> BlockIdentity:
    """Return the identity of a block of layer group `group`; `root` is the parent's digest of every
    first block."""
    above = content.parent
    return BlockIdentity(
        group_key(content.digest, group),
        root if above is None else above.digest,
        content.tokens,
        sha256(content.extra.encoded()).digest(),
    )


def header_of(fingerprint: bytes, identity: BlockIdentity, row_bytes: int) -> bytes:
    """Return all that a file has before its checksum."""
    key, parent, tokens, extra = identity
    sizes = _SIZES.pack(MAGIC, FORMAT, len(key), len(parent), len(tokens), row_bytes)
    return b"".join((sizes, fingerprint, key, parent, tokens, extra))


def file_bytes(header: bytes, row_bytes: int) -> int:
    """Return the length of a file."""
    return len(header) + CHECKSUM_BYTES + row_bytes


def write_block(path: str, temporary: str, header: bytes, row: memoryview) -> None:
    """Write a block's file at once or not at all. Raises OSError; then `temporary` is gone, where
    that can be done."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        try:
            _write_all(descriptor, [header, _checksum(header, row), row])
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def read_block(path: str, header: bytes, row: memoryview) -> Found:
    """Read a block into `row`, which means nothing unless the answer is WHOLE. Raises OSError where
    the disk fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Found.MISSING
    try:
        if os.fstat(descriptor).st_size != file_bytes(header, len(row)):
            return Found.BAD
        head = bytearray(len(header) + CHECKSUM_BYTES)
        if not _read_all(descriptor, [memoryview(head), row]):
            return Found.BAD
    finally:
        os.close(descriptor)
    return Found.WHOLE if head == header + _checksum(header, row) else Found.BAD


def _checksum(header: bytes, row: memoryview) -> bytes:
    checksum = xxh3_128(header)
    checksum.update(row)
    return checksum.digest()


def _write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    left = [memoryview(part) for part in parts]
    while left:
        left = _behind(left, os.writev(descriptor, left))


def _read_all(descriptor: int, parts: Sequence[memoryview]) -> bool:
    """Fill all parts; return False if the file ends before."""
    left = list(parts)
    while left:
        num_read = os.readv(descriptor, left)
        if num_read == 0:
            return False
        left = _behind(left, num_read)
    return True


def _behind(parts: Sequence[memoryview], num_bytes: int) -> list[memoryview]:
    """Return what of the parts is behind the first `num_bytes`."""
    left = []
    for part in parts:
        taken = min(num_bytes, len(part))
        num_bytes -= taken
        if taken < len(part):
            left.append(part[taken:])
    return left


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # a later scan finds it
