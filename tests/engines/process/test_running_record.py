"""The record of the requests that an engine is at work on."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.running_record import SIZE, RunningRecord, RunningRequests, create_record
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import NewRequestData, Step


@pytest.fixture
def record() -> Iterator[RunningRecord]:
    made = create_record()
    yield made
    made.close()


def step(new: list[str], finished: list[str]) -> Step:
    added = tuple(
        NewRequestData(NewRequest(id, (1,), Sampling(), Stopping(1)), (1,), ((0,),)) for id in new
    )
    return Step(1, tuple(finished), added, (), 0)


def test_a_new_record_names_nobody_and_a_closed_one_is_not_read(record: RunningRecord) -> None:
    assert record.read() == ()
    record.close()
    record.close()
    assert record.read() is None


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n"), min_size=1)))
def test_what_is_written_is_read_by_another_mapping(ids: list[str]) -> None:
    ours = create_record()
    theirs = RunningRecord(os.dup(ours.fd))
    theirs.write(["before"])
    theirs.write(ids)
    assert ours.read() == tuple(ids)
    ours.close()
    theirs.close()


def test_a_torn_write_is_seen(record: RunningRecord) -> None:
    def torn() -> Iterator[str]:
        yield "a"

    record.write(torn())
    other = RunningRecord(os.dup(record.fd))
    memory = os.pread(record.fd, 64, 0)
    for at in range(17):
        os.pwrite(record.fd, memory[:at] + bytes([memory[at] ^ 1]) + memory[at + 1 :], 0)
        assert other.read() != ("b",)
        assert at in range(1, 8) or other.read() is None, at
    other.close()


def test_ids_that_do_not_fit_are_not_known(record: RunningRecord) -> None:
    record.write(["a" * SIZE])
    assert record.read() is None
    record.write(["b"])
    assert record.read() == ("b",)


def test_requests_enter_and_leave_with_steps(record: RunningRecord) -> None:
    running = RunningRequests(record)
    running.enter("a")
    assert record.read() == ("a",)
    running.leave("a")
    running.note_step(step(["a", "b"], []))
    assert record.read() == ("a", "b")
    running.note_step(step(["c"], ["a"]))
    assert record.read() == ("a", "b", "c"), "a device may still compute the step before"
    running.note_step(step([], []))
    assert record.read() == ("b", "c")
    running.note_step(step(["b"], ["b"]))
    running.note_step(step([], []))
    assert record.read() == ("c", "b") or record.read() == ("b", "c")
