"""The content hash of full blocks: SHA-256 chained over the parent's digest, so equal hashes mean
equal prefixes.

A digest of 32 bytes is its own proof: no tokens are compared on a hit, since finding two prefixes
with one SHA-256 digest is beyond reach, even for a client that tries.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256

_TOKEN_BYTES = 4


def root_digest(salt: bytes) -> bytes:
    """The parent of every first block under this salt. Another salt gives another tree, nothing
    shared.
    """
    return sha256(b"quire block chain 1\0" + salt).digest()


def extend_hashes(
    hashes: list[bytes], token_ids: Sequence[int], *, block_size: int, salt: bytes
) -> None:
    """Append the digests of the full blocks of `token_ids` that `hashes` does not cover yet."""
    first, last = len(hashes), len(token_ids) // block_size
    if first >= last:
        return
    parent = hashes[-1] if hashes else root_digest(salt)
    raw = array("I", token_ids[first * block_size : last * block_size]).tobytes()
    width = block_size * _TOKEN_BYTES
    for start in range(0, len(raw), width):
        parent = sha256(parent + raw[start : start + width]).digest()
        hashes.append(parent)


def group_key(digest: bytes, group: int) -> bytes:
    """What a block of this layer group is found by: one content lies in another block in each
    group.
    """
    return digest if group == 0 else digest + group.to_bytes(2, "little")
