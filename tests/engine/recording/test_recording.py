"""A record is replayed to the same decisions, whatever went into the scheduler and wherever a
segment began."""

from collections.abc import Iterator
from contextlib import closing

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.cache.block_hash import BlockHash
from quire.cache.config import CacheConfig
from quire.cache.snapshot.digest_numbers import DigestNumbers, digest_of
from quire.engine.recording.frames import bodies, framed
from quire.engine.recording.inputs import Record, StepScheduled
from quire.engine.recording.replayed_scheduler import SegmentStart, restored, shape_of
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.policy import PolicyName
from quire.scheduler.snapshot.arrival import TenantNumbers
from quire.scheduler.snapshot.scheduler_snapshot import can_snapshot, snapshot_scheduler
from quire.workbench.simulation.replay import replay
from tests.engine.recording.recorded import Inputs, Recorded, cache_configs, scheduler_configs

DECODER = msgspec.msgpack.Decoder[Record](Record)


@given(st.data(), scheduler_configs, cache_configs, st.sampled_from([0.0, 2.0, 1e9]))
def test_a_record_is_replayed_to_the_same_decisions(
    data: st.DataObject, config: SchedulerConfig, cache: CacheConfig, segment_s: float
) -> None:
    is_fair = config.scheduling_policy is PolicyName.FAIR
    with closing(Recorded(config, cache, segment_s)) as recorded:
        inputs = Inputs(data, recorded.scheduler, recorded.cache, is_fair=is_fair)
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
def test_a_restored_scheduler_has_the_same_snapshot(
    data: st.DataObject, config: SchedulerConfig, cache: CacheConfig
) -> None:
    is_fair = config.scheduling_policy is PolicyName.FAIR
    with closing(Recorded(config, cache)) as recorded:
        scheduler, recorder = recorded.scheduler, recorded.recorder
        inputs = Inputs(data, scheduler, recorded.cache, is_fair=is_fair)
        for _ in range(data.draw(st.integers(1, 60))):
            inputs.give()
        assume(can_snapshot(scheduler))
        snapshot = snapshot_scheduler(scheduler, recorder.numbers, recorder.tenants)
    shape = shape_of(cache)
    body = msgspec.msgpack.encode(SegmentStart(0.0, 0.0, config, shape, snapshot, ()))
    start = DECODER.decode(body)
    assert isinstance(start, SegmentStart)
    again = restored(start).scheduler
    numbers = DigestNumbers(BlockHash(), len(cache.groups))
    numbers.learn(map(digest_of, range(len(snapshot.cache.depths))))
    numbers.depths[:] = snapshot.cache.depths
    taken = snapshot_scheduler(again, numbers, TenantNumbers())
    assert msgspec.to_builtins(taken) == msgspec.to_builtins(snapshot)


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
        if number and isinstance(DECODER.decode(body), StepScheduled):
            yield number


def framed_again(segment: bytes, place: int) -> bytes:
    """Return the segment with another checksum in one of its frames."""
    frames = list(bodies(segment))
    scheduled = DECODER.decode(frames[place])
    assert isinstance(scheduled, StepScheduled)
    other = msgspec.structs.replace(scheduled, checksum=scheduled.checksum ^ 1)
    frames[place] = msgspec.msgpack.encode(other)
    return b"".join(map(framed, frames))
