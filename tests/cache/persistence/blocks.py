"""Blocks for a store, made up from numbers."""

from hashlib import sha256
from pathlib import Path

from quire.cache.persistence.block_file import BlockIdentity
from quire.cache.persistence.store import BlockStore

FINGERPRINT = bytes(range(32))
ROW_BYTES = 300


def identity(number: int) -> BlockIdentity:
    """The block of a number: all of it follows from that."""
    key, parent = (sha256(bytes([which, number % 256])).digest() for which in (1, 2))
    return BlockIdentity(key, parent, bytes([number % 256]) * 64, sha256(b"").digest())


def row(number: int, num_bytes: int = ROW_BYTES) -> bytes:
    """The bytes of a block."""
    return sha256(bytes([number % 256])).digest() * (num_bytes // 32) + bytes(num_bytes % 32)


def put(store: BlockStore, number: int) -> bool:
    return store.put(identity(number), memoryview(row(number)), store.epoch)


def get(store: BlockStore, number: int) -> bytes | None:
    """The value that the store has, None for a miss."""
    found = bytearray(ROW_BYTES)
    return bytes(found) if store.get(identity(number), memoryview(found)) else None


def files_of(folder: Path) -> list[Path]:
    """The files of blocks that can be found."""
    return sorted(folder.glob("[0-9a-f]*/*/*.kv"))
