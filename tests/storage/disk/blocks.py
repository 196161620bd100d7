"""Blocks for a store, made up from numbers."""

from hashlib import sha256
from pathlib import Path

from quire.storage.disk.block_header import BlockIdentity
from quire.storage.disk.store import BlockStore

FINGERPRINT = bytes(range(32))
ROW_BYTES = 300


def identity(number: int) -> BlockIdentity:
    """The block of a number: all of it follows from that."""
    key, parent = (sha256(bytes([which, number % 256])).digest() for which in (1, 2))
    return BlockIdentity(key, parent, bytes([number % 256]) * 64, sha256(b"").digest())


def row(number: int, num_bytes: int = ROW_BYTES) -> bytes:
    """The bytes of a block."""
    return sha256(bytes([number % 256])).digest() * (num_bytes // 32) + bytes(num_bytes % 32)


def put(store: BlockStore, *numbers: int) -> bool:
    """Write blocks as one extent, but for those that are there."""
    rows = [memoryview(row(number)) for number in numbers]
    return store.put([identity(number) for number in numbers], rows, store.epoch)


def get(store: BlockStore, number: int) -> bytes | None:
    """The value that the store has, None for a miss."""
    found = bytearray(ROW_BYTES)
    return bytes(found) if store.get([identity(number)], [memoryview(found)]) else None


def get_all(store: BlockStore, *numbers: int) -> list[bytes]:
    """The values of the leading blocks that the store has, asked for at once."""
    found = [bytearray(ROW_BYTES) for _ in numbers]
    rows = [memoryview(each) for each in found]
    num_whole = store.get([identity(number) for number in numbers], rows)
    return [bytes(each) for each in found[:num_whole]]


def files_of(folder: Path) -> list[Path]:
    """The files of extents that can be found."""
    return sorted(folder.glob("[0-9a-f]*/*/*.kv"))
