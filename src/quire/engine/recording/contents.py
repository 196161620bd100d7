"""Reads the length and the number of steps of a segment without replaying it."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from quire.engine.recording.frames import HEAD_BYTES, bodies
from quire.engine.recording.inputs import StepScheduled


class Contents(NamedTuple):
    """The times of the wall at which a segment begins and its last step was scheduled, its number
    of steps, and its data without what is torn at its end."""

    began_s: float
    ended_s: float
    num_steps: int
    data: bytes


class _Kind(msgspec.Struct, array_like=True):
    """The first field of any frame."""

    tag: int


class _Began(msgspec.Struct, array_like=True):
    """The first fields of a `SegmentStart`."""

    tag: int
    now_s: float
    wall_s: float


_KIND = msgspec.msgpack.Decoder(_Kind)
_BEGAN = msgspec.msgpack.Decoder(_Began)
_SCHEDULED = msgspec.msgpack.Decoder(StepScheduled)
_TAG = StepScheduled.__struct_config__.tag


def contents_of(segments: Iterable[bytes]) -> list[Contents]:
    """Return the contents of the segments in a ring whose beginning is complete."""
    return [contents for data in segments if (contents := _contents(data)) is not None]


def _contents(data: bytes) -> Contents | None:
    records = bodies(data)
    first = next(records, None)
    if first is None:
        return None
    began, length = _BEGAN.decode(first), HEAD_BYTES + len(first)
    num_steps, last = 0, None
    for body in records:
        length += HEAD_BYTES + len(body)
        if _KIND.decode(body).tag == _TAG:
            num_steps, last = num_steps + 1, body
    seconds = 0.0 if last is None else _SCHEDULED.decode(last).now - began.now_s
    return Contents(began.wall_s, began.wall_s + seconds, num_steps, data[:length])
