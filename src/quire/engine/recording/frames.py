"""Frames of a record: a length and a checksum of four bytes each, little-endian, then the body.
What is torn or altered ends what can be read; all before it stands.
"""

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

_HEAD = Struct("<II")
HEAD_BYTES = _HEAD.size


def framed(body: bytes) -> bytes:
    """Return the body as a frame."""
    return _HEAD.pack(len(body), crc32(body)) + body


def bodies(data: bytes) -> Iterator[bytes]:
    """Yield the bodies of the frames up to the first that is not whole."""
    start = 0
    while start + HEAD_BYTES <= len(data):
        length, checksum = _HEAD.unpack_from(data, start)
        start += HEAD_BYTES
        body = data[start : start + length]
        if len(body) < length or crc32(body) != checksum:
            return
        yield body
        start += length
