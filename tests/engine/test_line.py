"""Frames survive any cut of the byte stream."""

import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.reuse import Reuse
from quire.engine.line import Line, LineClosed, frame
from quire.engine.messages import Abort, Submit
from quire.scheduler.request import NewRequest, Sampling, Stopping


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 30))
def test_frames_arrive_whole_however_they_are_cut(bodies: list[bytes], piece: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Line(theirs)
        data = b"".join(frame(body) for body in bodies)
        got: list[bytes] = []
        for start in range(0, len(data), piece):
            ours.sendall(data[start : start + piece])
            got += line.receive(wait=False)
        assert got == bodies
        assert line.receive(wait=False) == []


def test_a_closed_line_is_said() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        line = Line(theirs)
        ours.close()
        with pytest.raises(LineClosed):
            line.receive(wait=True)
        with pytest.raises(LineClosed):
            line.send(Abort("a"))


@given(
    st.builds(
        NewRequest,
        id=st.text(max_size=8),
        prompt_token_ids=st.lists(st.integers(0, 2**31)).map(tuple),
        sampling=st.builds(Sampling, seed=st.integers(-(2**63), 2**63 - 1)),
        stopping=st.builds(Stopping, max_tokens=st.integers(1, 100)),
        reuse=st.builds(Reuse, st.binary(max_size=8)),
    )
)
def test_a_request_crosses_unchanged(new: NewRequest) -> None:
    body = msgspec.msgpack.encode(Submit(new))
    assert msgspec.msgpack.decode(body, type=Submit | Abort) == Submit(new)
