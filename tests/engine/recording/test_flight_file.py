"""A file that was cut off or altered is read as far as it is whole."""

import os
from pathlib import Path
from threading import Event, Thread

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.engine.recording.contents import contents_of
from quire.engine.recording.flight_file import (
    FORMAT,
    MAX_FILES,
    FileKind,
    FlightFileError,
    FlightHead,
    encoded,
    read_file,
    write_file,
)
from quire.engine.recording.frames import bodies, framed
from quire.engine.recording.ring import NUM_SLOTS, RingReader, RingWriter, create_ring, read_ring
from quire.scheduler.config import SchedulerConfig
from quire.workbench.simulation.replay import replay
from tests.engine.recording.recorded import Recorded
from tests.scheduler.driver import request, result_of

HEAD = FlightHead(FORMAT, "1", 1.0, "why", "model")


def recorded_file() -> bytes:
    """A file of two segments, with forty steps in all."""
    recorded = Recorded(SchedulerConfig(4, 8, 64, 8), CacheConfig(33, 2), 25.0)
    for number in range(40):
        recorded.scheduler.add(request(f"r{number}"), float(number))
        step = recorded.scheduler.schedule(float(number))
        recorded.scheduler.update(step, result_of(step), number + 0.5)
    data = b"".join(encoded(HEAD, recorded.segments))
    recorded.close()
    return data


DATA = recorded_file()


def test_a_whole_file_is_replayed() -> None:
    file = read_file(DATA)
    found = replay(file.segments)
    assert file.head == HEAD and found.num_steps == 40 and len(found.starts) == 2
    assert found.difference == ""


@given(st.integers(0, len(DATA)))
def test_a_file_cut_off_at_any_byte_is_replayed_up_to_there(num_bytes: int) -> None:
    try:
        found = replay(read_file(DATA[:num_bytes]).segments)
    except FlightFileError:
        assert num_bytes < 200
        return
    assert found.difference == ""


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_an_altered_file_is_replayed_up_to_there(place: int, change: int) -> None:
    data = bytearray(DATA)
    data[place] ^= change
    try:
        found = replay(read_file(bytes(data)).segments)
    except FlightFileError:
        return
    assert found.difference == ""


def test_a_folder_keeps_the_newest_files(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        write_file(tmp_path / "a", HEAD, [b"data"], f"{number:03d}", FileKind.ENGINE_ENDED)
    kept = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert kept == [f"{number:03d}.flight" for number in range(3, MAX_FILES + 3)]


def test_files_that_were_asked_for_take_no_place_of_those_of_ends(tmp_path: Path) -> None:
    write_file(tmp_path, HEAD, [b"data"], "0", FileKind.ENGINE_ENDED)
    for number in range(1, MAX_FILES + 3):
        write_file(tmp_path, HEAD, [b"data"], f"{number:03d}", FileKind.ASKED)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["0.flight", *(f"{number:03d}-asked.flight" for number in range(3, 19))]


def test_a_ring_that_is_written_to_is_read_whole() -> None:
    """Each read, at any moment, has whole frames alone, in the order in which they were written."""
    fd = create_ring()
    writer, has_ended = RingWriter(fd), Event()

    def write() -> None:
        first = 0
        while not has_ended.is_set():
            writer.begin(framed(b"%d" % first))
            for number in range(first + 1, first + 200):
                writer.append(framed(b"%d" % number))
            first += 200

    thread = Thread(target=write)
    thread.start()
    try:
        reader = RingReader(fd)
        for _ in range(300):
            for segment in reader.segments():
                numbers = [int(body) for body in bodies(segment.data)]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert b"".join(framed(b"%d" % number) for number in numbers) == segment.data
    finally:
        has_ended.set()
        thread.join()
        writer.close()
        os.close(fd)


@given(st.integers(0, len(DATA)))
def test_the_contents_of_a_torn_segment_end_where_it_is_torn(num_bytes: int) -> None:
    segment = read_file(DATA).segments[0]
    for contents in contents_of([segment[:num_bytes]]):
        assert segment.startswith(contents.data) and len(contents.data) <= num_bytes
        assert sum(map(len, map(framed, bodies(contents.data)))) == len(contents.data)
        found = replay([contents.data])
        assert (found.num_steps, found.difference) == (contents.num_steps, "")


def test_a_ring_keeps_the_newest_segments() -> None:
    fd = create_ring()
    try:
        ring = RingWriter(fd)
        for number in range(NUM_SLOTS + 3):
            assert ring.begin(b"begin%d" % number)
            ring.append(b" more")
        segments = read_ring(fd)
        ring.close()
    finally:
        os.close(fd)
    assert [each.data for each in segments] == [
        b"begin%d more" % number for number in range(3, NUM_SLOTS + 3)
    ]
