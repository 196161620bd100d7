"""The hash of full blocks, chained over the parent's digest. A digest finds a block; that the found
block is the right one is proven by its content (`chain.py`), so that no hash is too weak to be
correct.
"""

from array import array
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from quire.cache import cbor

TOKEN_CODE = "I"
TOKEN_BYTES = array(TOKEN_CODE).itemsize

Digest: TypeAlias = Callable[[bytes, bytes, bytes], bytes]
"""Maps the parent's digest, the block's tokens and its encoded extra keys (empty if there are none)
to the block's digest. All digests of one function are equally long.
"""


class HashAlgorithm(StrEnum):
    """An algorithm by which full blocks are hashed. `SHA256_CBOR` gives the same digests in every
    process and in other programs; `SHA256` is faster.
    """

    SHA256 = "sha256"
    SHA256_CBOR = "sha256_cbor"


def _sha256(parent: bytes, tokens: bytes, extra: bytes) -> bytes:
    return sha256(parent + tokens + extra).digest()


def _sha256_cbor(parent: bytes, tokens: bytes, extra: bytes) -> bytes:
    encoded = (cbor.encode(parent), cbor.encode(ids_of(tokens)), extra or cbor.NULL)
    return sha256(cbor.array_of(encoded)).digest()


class BlockHash(NamedTuple):
    """A hash function with `root`, the parent digest of every first block."""

    root: bytes = b""
    digest: Digest = _sha256


def build_block_hash(algorithm: HashAlgorithm, *, seed: str | None, noise: bytes) -> BlockHash:
    """Return the hash of `algorithm`. Its root is derived from `seed`; without a seed it is
    `noise`, so that digests are unpredictable."""
    digest = _sha256_cbor if algorithm is HashAlgorithm.SHA256_CBOR else _sha256
    return BlockHash(noise if seed is None else sha256(cbor.encode(seed)).digest(), digest)


def ids_of(tokens: bytes) -> list[int]:
    """Return the token ids in a block's bytes."""
    ids = array(TOKEN_CODE)
    ids.frombytes(tokens)
    return ids.tolist()


STATE_GROUP = 0xFFFF
"""Stands in place of a layer group, in the keys of slower stores, for the state of recurrent layers
after a block."""


def group_key(digest: bytes, group: int) -> bytes:
    """Return the key under which a block of layer group `group` is found. Each group has another
    block for the same content, and so another key.
    """
    return digest if group == 0 else digest + group.to_bytes(2, "little")


def group_of(key: bytes, digest: bytes) -> int:
    """Return the group that `group_key` made this key for."""
    return int.from_bytes(key[len(digest) :], "little")
