"""A file that asks for more memory than any record needs is refused, and takes none."""

import re
import tracemalloc
import zlib
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import pytest

from quire.engine.recording.bounds import MAX_HELD_TOKENS, MAX_TOKENS
from quire.engine.recording.flight_file import MAGIC, FlightFileError, read_file
from quire.engine.recording.frames import HEAD_BYTES, bodies, framed
from quire.engine.recording.inputs import Input, Record, RequestAdded, StepUpdated
from quire.engine.recording.replayed_scheduler import SegmentStart
from quire.workbench.simulation.replay import replay
from tests.engine.recording.test_flight_file import DATA

DECODER = msgspec.msgpack.Decoder[Record](Record)
SEGMENT = read_file(DATA).segments[1]
HUGE = 1 << 40
Change: TypeAlias = Callable[[SegmentStart], SegmentStart]


def shape(**changes: int) -> Change:
    return lambda start: msgspec.structs.replace(
        start, cache=msgspec.structs.replace(start.cache, **changes)
    )


def cache(start: SegmentStart, **changes: object) -> SegmentStart:
    snapshot = start.snapshot
    changed = snapshot._replace(cache=snapshot.cache._replace(**changes))  # type: ignore[arg-type]
    return msgspec.structs.replace(start, snapshot=changed)


def request(start: SegmentStart, **changes: object) -> SegmentStart:
    first, *others = start.snapshot.requests
    changed = first._replace(**changes)  # type: ignore[arg-type]
    snapshot = start.snapshot._replace(requests=[changed, *others])
    return msgspec.structs.replace(start, snapshot=snapshot)


def many_requests(start: SegmentStart) -> SegmentStart:
    """Each has as many tokens as one may have."""
    first = start.snapshot.requests[0]._replace(num_tokens=MAX_TOKENS - 100)
    return msgspec.structs.replace(start, snapshot=start.snapshot._replace(requests=[first] * 9))


def long_prompt(start: SegmentStart) -> SegmentStart:
    arrival = start.snapshot.requests[0].arrival
    return request(start, arrival=arrival._replace(num_prompt_tokens=HUGE))


def long_chain(start: SegmentStart) -> SegmentStart:
    table = start.snapshot.requests[0].table
    return request(start, table=table._replace(chain=[0, HUGE]))


def refused(segment: bytes) -> str:
    """The error that a replay ends with, once it took no memory worth mentioning."""
    tracemalloc.start()
    try:
        with pytest.raises(FlightFileError) as refusal:
            replay([segment])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    return str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [
        shape(num_blocks=HUGE),
        shape(num_host_blocks=HUGE),
        shape(block_size=HUGE),
        lambda start: cache(start, depths=[HUGE]),
        lambda start: request(start, num_tokens=HUGE),
        long_prompt,
        long_chain,
    ],
)
def test_a_beginning_beyond_bounds_is_refused(change: Change) -> None:
    first, *others = bodies(SEGMENT)
    start = DECODER.decode(first)
    assert isinstance(start, SegmentStart)
    changed = msgspec.msgpack.encode(change(start))
    told = refused(b"".join(map(framed, (changed, *others))))
    assert re.search(r"the file says 10995116277\d\d [a-z]", told)


def test_requests_that_are_too_much_together_are_refused() -> None:
    start = DECODER.decode(next(bodies(SEGMENT)))
    assert isinstance(start, SegmentStart)
    told = refused(framed(msgspec.msgpack.encode(many_requests(start))))
    assert f"tokens of all requests: a replay takes {MAX_HELD_TOKENS} at most" in told


def test_a_beginning_that_is_no_snapshot_is_refused() -> None:
    start = DECODER.decode(next(bodies(SEGMENT)))
    assert isinstance(start, SegmentStart)
    changed = shape(block_size=0)(start)
    assert "no snapshot: ValueError" in refused(framed(msgspec.msgpack.encode(changed)))


@pytest.mark.parametrize("field", ["forced", "scored", "ended", "answers", "arrival"])
def test_an_input_beyond_bounds_is_refused(field: str) -> None:
    first, *others = bodies(SEGMENT)
    for number, body in enumerate(others):
        record = DECODER.decode(body)
        assert not isinstance(record, SegmentStart)
        changed = enlarged(record, field)
        if changed is not None:
            others[number] = msgspec.msgpack.encode(changed)
            break
    told = refused(b"".join(map(framed, (first, *others))))
    assert f"{MAX_TOKENS} at most" in told


def enlarged(record: Input, field: str) -> Input | None:
    if field == "answers":
        return msgspec.structs.replace(record, answers=[0, HUGE])
    if isinstance(record, RequestAdded) and field == "arrival":
        arrival = record.arrival._replace(num_prompt_tokens=HUGE)
        return msgspec.structs.replace(record, arrival=arrival)
    if isinstance(record, StepUpdated) and field != "arrival":
        return msgspec.structs.replace(record, **{field: {"r1": HUGE}})
    return None


def test_a_bomb_is_not_unpacked() -> None:
    head = MAGIC + framed(next(bodies(DATA[len(MAGIC) :])))
    assert len(head) > HEAD_BYTES
    packed = zlib.compress(bytes(256 << 20), 9)
    bomb = len(packed).to_bytes(4, "little") + packed
    tracemalloc.start()
    try:
        (segment,) = read_file(head + bomb).segments
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert len(segment) <= 4 << 20
    with pytest.raises(FlightFileError, match="more than 8 segments"):
        read_file(head + bomb * 9)
