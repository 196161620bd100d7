"""Frames survive any cut of the byte stream."""

import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.kv_events import KVEvent
from quire.cache.sharing import PromptItem, SharingTerms
from quire.engine.channel import Channel, ChannelClosed, frame
from quire.engine.messages import Abort, EngineOutput, Submit, ToEngine
from quire.engine.orders import ResetPrefixCache
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, Sampling, Stopping
from quire.scheduler.step import Stats


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 30))
def test_frames_arrive_whole_however_they_are_cut(bodies: list[bytes], piece: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs)
        data = b"".join(frame(body) for body in bodies)
        got: list[bytes] = []
        for start in range(0, len(data), piece):
            ours.sendall(data[start : start + piece])
            got += channel.receive(wait=False)
        assert got == bodies
        assert channel.receive(wait=False) == []


def test_a_wait_ends_with_what_arrives_or_with_its_time() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(theirs)
        assert not channel.wait(0.01)
        ours.sendall(frame(b""))
        assert channel.wait(60)
        assert channel.receive(wait=True) == [b""]
        ours.close()
        assert channel.wait(60)


def test_a_closed_channel_raises() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(theirs)
        ours.close()
        with pytest.raises(ChannelClosed):
            channel.receive(wait=True)
        with pytest.raises(ChannelClosed):
            channel.send(Abort("a"))


GROUPS = st.integers(0, 2**16 - 1)
ITEMS = st.builds(PromptItem, st.binary(max_size=8), st.integers(0, 9), st.integers(0, 9))


@given(
    st.builds(
        NewRequest,
        id=st.text(max_size=8),
        prompt_token_ids=st.lists(st.integers(0, 2**31)).map(tuple),
        sampling=st.builds(Sampling, seed=st.integers(-(2**63), 2**63 - 1)),
        stopping=st.builds(Stopping, max_tokens=st.integers(1, 100)),
        sharing=st.builds(
            SharingTerms, st.binary(max_size=8), items=st.lists(ITEMS, max_size=2).map(tuple)
        ),
    )
)
def test_a_request_crosses_unchanged(new: NewRequest) -> None:
    body = msgspec.msgpack.encode(Submit(new))
    assert msgspec.msgpack.decode(body, type=Submit | Abort) == Submit(new)


EVENT = Event(1.5, Reason.SWAPPED_OUT, 3, "b")
EVENTS = st.builds(KVEvent, token_ids=st.lists(st.integers(0, 2**32 - 1)).map(tuple), group=GROUPS)


@given(st.lists(EVENTS, max_size=4))
def test_events_cross_unchanged(events: list[KVEvent]) -> None:
    stats = Stats(*range(len(Stats._fields)))
    report = EngineOutput(
        1, 2, 0.5, ("a",), (), (), stats, (("a", EVENT),), kv_events=tuple(events)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=EngineOutput) == report


def test_a_reset_is_told_from_other_messages() -> None:
    decoder = msgspec.msgpack.Decoder[ToEngine](Submit | Abort | ResetPrefixCache)
    assert decoder.decode(msgspec.msgpack.encode(ResetPrefixCache())) == ResetPrefixCache()
