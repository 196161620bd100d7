"""The header of one block: all that its bytes depend on. A reader knows every byte of it, so that
it is compared as a whole: a block of other tokens, another tenant or another model never is the one
that was asked for.

    sizes | fingerprint | key | parent | tokens | extra | zeros | checksum

The checksum is over all that is before it and the block's row. It detects damage, not forgery:
every process with write access to the folder is trusted.
"""

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from xxhash import xxh3_128

from quire.cache.block_hash import group_key
from quire.cache.chain import Content

CHECKSUM_BYTES = 16
FINGERPRINT_BYTES = 32
_SIZES = struct.Struct("<HHHQ")


class BlockIdentity(NamedTuple):
    """The identity of a block among those of a model: its key and its parent's digest, its tokens
    as bytes, and a digest of its extra keys, which may hold a tenant's salt."""

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
    """Return a header without the zeros and the checksum behind it."""
    key, parent, tokens, extra = identity
    sizes = _SIZES.pack(len(key), len(parent), len(tokens), row_bytes)
    return b"".join((sizes, fingerprint, key, parent, tokens, extra))


def checksum_of(header: bytes, row: memoryview) -> bytes:
    """Return the checksum over a header, zeros included, and its row."""
    checksum = xxh3_128(header)
    checksum.update(row)
    return checksum.digest()


def key_in(entry: memoryview) -> bytes:
    """Return the key in a header that was read; it is empty if the block was erased."""
    key_bytes, _, _, _ = _SIZES.unpack_from(entry)
    first = _SIZES.size + FINGERPRINT_BYTES
    return bytes(entry[first : first + key_bytes])


def digest_of_keys(keys: Sequence[bytes]) -> bytes:
    """Return a digest of 16 bytes of these keys in this order."""
    return sha256(b"".join(keys)).digest()[:16]
