"""Events are the same however the bytes of a stream are split."""

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.terminal.event_stream import (
    MAX_LINE_BYTES,
    BadStream,
    ServerEvent,
    read_events,
)

DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(str.encode)
EVENTS = st.lists(st.tuples(st.sampled_from(["", "error", "state"]), st.lists(DATA, min_size=1)))


async def of_chunks(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def read(*chunks: bytes) -> list[ServerEvent]:
    async def gather() -> list[ServerEvent]:
        return [event async for event in read_events(of_chunks(chunks))]

    gathering = gather()  # nothing in it waits, so that it needs no event loop
    with pytest.raises(StopIteration) as ended:
        gathering.send(None)
    events: list[ServerEvent] = ended.value.value
    return events


def written(name: str, lines: Sequence[bytes], end: bytes) -> bytes:
    named = [b"event: " + name.encode()] if name else []
    return end.join((*named, *(b"data: " + line for line in lines), b"", b""))


@given(EVENTS, st.lists(st.integers(0, 400)), st.sampled_from([b"\n", b"\r\n"]))
def test_any_split_gives_the_events_that_were_written(
    events: list[tuple[str, list[bytes]]], cuts: list[int], end: bytes
) -> None:
    stream = b"".join(written(name, lines, end) for name, lines in events)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[first:last] for first, last in pairwise(places)]
    assert read(*chunks) == [ServerEvent(name, b"\n".join(lines)) for name, lines in events]


def test_comments_and_an_event_that_is_cut_short_are_passed_over() -> None:
    assert read(b": ping\n\ndata:a\nretry: 3\n\ndata: b\n") == [ServerEvent("", b"a")]


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(BadStream, match=str(MAX_LINE_BYTES)):
        read(*[b"x" * 2**20] * 17)
