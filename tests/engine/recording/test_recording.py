"""A record is replayed to the same decisions, whatever went into the scheduler and wherever a
segment began."""

from collections.abc import Iterator
from contextlib import closing

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.engine.recording.frames import bodies, framed
from quire.engine.recording.inputs import Record, Scheduled
from quire.scheduler.config import SchedulerConfig
from quire.simulation.replay import replay
from tests.engine.recording.recorded import Inputs, Recorded, cache_configs, scheduler_configs

DECODER = msgspec.msgpack.Decoder[Record](Record)


@given(st.data(), scheduler_configs, cache_configs, st.sampled_from([0.0, 2.0, 1e9]))
def test_a_record_is_replayed_to_the_same_decisions(
    data: st.DataObject, config: SchedulerConfig, cache: CacheConfig, segment_s: float
) -> None:
    with closing(Recorded(config, cache, segment_s)) as recorded:
        inputs = Inputs(data, recorded.scheduler, recorded.cache)
        for _ in range(data.draw(st.integers(1, 60))):
            inputs.give()
        recorded.cache.check()
        replayed = replay(recorded.segments)
        assert replayed.difference == ""
        assert not recorded.recorder.is_broken
        if replayed.last is not None:
            replayed.last.cache.check()
            assert replayed.last.cache.usage == recorded.cache.usage
            assert replayed.last.cache.host_usage == recorded.cache.host_usage


@given(st.data(), scheduler_configs, cache_configs)
def test_a_record_that_ends_at_any_byte_is_replayed_up_to_there(
    data: st.DataObject, config: SchedulerConfig, cache: CacheConfig
) -> None:
    with closing(Recorded(config, cache, 2.0)) as recorded:
        inputs = Inputs(data, recorded.scheduler, recorded.cache)
        for _ in range(data.draw(st.integers(1, 20))):
            inputs.give()
        segments = recorded.segments
    if segments:
        num_bytes = data.draw(st.integers(0, len(segments[-1])))
        assert replay([segments[-1][:num_bytes]]).difference == ""


@given(st.data(), scheduler_configs, cache_configs)
def test_another_decision_is_told(
    data: st.DataObject, config: SchedulerConfig, cache: CacheConfig
) -> None:
    """The record of one step is replaced by one that says something else."""
    with closing(Recorded(config, cache)) as recorded:
        inputs = Inputs(data, recorded.scheduler, recorded.cache)
        for _ in range(data.draw(st.integers(1, 20))):
            inputs.give()
        inputs.step()
        (segment,) = recorded.segments
    place = data.draw(st.sampled_from(list(places_of_checksums(segment))))
    replayed = replay([framed_again(segment, place)])
    assert replayed.difference
    assert not replay([segment]).difference


def places_of_checksums(segment: bytes) -> Iterator[int]:
    """Yield the numbers of the frames that have the checksum of a step."""
    for number, body in enumerate(bodies(segment)):
        if number and isinstance(DECODER.decode(body), Scheduled):
            yield number


def framed_again(segment: bytes, place: int) -> bytes:
    """Return the segment with another checksum in one of its frames."""
    frames = list(bodies(segment))
    scheduled = DECODER.decode(frames[place])
    assert isinstance(scheduled, Scheduled)
    other = msgspec.structs.replace(scheduled, checksum=scheduled.checksum ^ 1)
    frames[place] = msgspec.msgpack.encode(other)
    return b"".join(map(framed, frames))
