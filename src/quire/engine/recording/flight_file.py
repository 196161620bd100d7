"""The file that a record is kept in: a head that says when, why and by which version it was
written, then each segment, compressed. A file that was cut off is read up to where it was cut.
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.engine.recording.frames import HEAD_BYTES, bodies, framed
from quire.engine.recording.inputs import Input, Record
from quire.engine.recording.replayed_scheduler import SegmentStart
from quire.engine.recording.ring import NUM_SLOTS, RING_BYTES, SLOT_BYTES

MAGIC = b"quire-flight-record\n"
FORMAT = 5
SUFFIX = ".flight"
MAX_FILES = 16
"""The maximum number of files of each kind in a folder; the oldest is deleted first."""
_ASKED = "-asked"
_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16
_MAX_FILE_BYTES = 2 * RING_BYTES
"""No true file is as large."""


class FileKind(StrEnum):
    """The occasion on which a file is written."""

    ENGINE_ENDED = "engine_ended"
    ASKED = "asked"


class FlightFileError(Exception):
    """The file is none of a flight recorder, or of another format; the text is for people."""


class FlightHead(msgspec.Struct, frozen=True):
    """The head of a file: the format, the version of Quire, when it was written and why."""

    format: int
    quire: str
    written_s: float
    reason: str
    model: str


class FlightSegment(NamedTuple):
    """One segment: how it begins, and what followed. `is_torn` says that its end is missing."""

    start: SegmentStart
    inputs: Iterator[Input]


class FlightFile(NamedTuple):
    """The head, and the segments in their order, each as its frames."""

    head: FlightHead
    segments: list[bytes]


def encoded(head: FlightHead, segments: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of a file."""
    yield MAGIC + framed(msgspec.msgpack.encode(head))
    for data in segments:
        packed = zlib.compress(data, 1)
        yield len(packed).to_bytes(_LENGTH_BYTES, "little") + packed


def write_file(
    folder: Path, head: FlightHead, segments: Iterable[bytes], name: str, kind: FileKind
) -> Path:
    """Write a file into the folder, which is made if it is missing and for its owner alone, and
    remove the oldest of its kind beyond MAX_FILES. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}{_ASKED if kind is FileKind.ASKED else ''}{SUFFIX}"
    partial = path.with_suffix(".partial")
    try:
        with open(partial, "xb", opener=_private) as file:
            file.writelines(encoded(head, segments))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    files = (each for each in sorted(folder.glob(f"*{SUFFIX}")) if _kind_of(each) is kind)
    for old in list(files)[:-MAX_FILES]:
        old.unlink(missing_ok=True)
    return path


def load_file(path: Path) -> FlightFile:
    """Return the content of the file at `path`. Raises FlightFileError, and OSError."""
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise FlightFileError(f"the file has more than {_MAX_FILE_BYTES} bytes: no record has")
    return read_file(data)


def read_file(data: bytes) -> FlightFile:
    """Return the content of a file. Raises FlightFileError for other files."""
    if not data.startswith(MAGIC):
        raise FlightFileError("this is no file of a flight recorder")
    body = next(bodies(data[len(MAGIC) :]), None)
    if body is None:
        raise FlightFileError("the file ends within its head")
    try:
        head = msgspec.msgpack.decode(body, type=FlightHead)
    except msgspec.MsgspecError as error:
        raise FlightFileError(f"the head of the file cannot be read: {error}") from error
    if head.format != FORMAT:
        raise FlightFileError(
            f"the file has format {head.format}, written by Quire {head.quire}; this version reads "
            f"format {FORMAT}"
        )
    segments: list[bytes] = []
    start = len(MAGIC) + HEAD_BYTES + len(body)
    while start + _LENGTH_BYTES <= len(data):
        if len(segments) == NUM_SLOTS:
            raise FlightFileError(f"the file has more than {NUM_SLOTS} segments: no record has")
        length = int.from_bytes(data[start : start + _LENGTH_BYTES], "little")
        start += _LENGTH_BYTES
        segments.append(_unpacked(data[start : start + length]))
        start += length
    return FlightFile(head, segments)


def read_segment(data: bytes) -> FlightSegment | None:
    """Return the content of a segment's frames, up to the first incomplete one; None if that is not
    even its beginning."""
    decoder = msgspec.msgpack.Decoder[Record](Record)
    records = bodies(data)
    try:
        start = decoder.decode(next(records, b""))
    except msgspec.MsgspecError:
        return None
    if not isinstance(start, SegmentStart):
        return None
    return FlightSegment(start, _inputs(records, decoder))


def _inputs(records: Iterator[bytes], decoder: msgspec.msgpack.Decoder[Record]) -> Iterator[Input]:
    for body in records:
        try:
            record = decoder.decode(body)
        except msgspec.MsgspecError:
            return
        if isinstance(record, SegmentStart):
            return
        yield record


def _unpacked(packed: bytes) -> bytes:
    """Return as much of a compressed segment as is whole, within bounds."""
    stream, parts, size = zlib.decompressobj(), [], 0
    for start in range(0, len(packed), _CHUNK_BYTES):
        try:
            part = stream.decompress(packed[start : start + _CHUNK_BYTES], SLOT_BYTES - size)
        except zlib.error:
            break
        parts.append(part)
        size += len(part)
        if size >= SLOT_BYTES:
            break
    return b"".join(parts)


def _kind_of(path: Path) -> FileKind:
    return FileKind.ASKED if path.stem.endswith(_ASKED) else FileKind.ENGINE_ENDED


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
