"""A record is replayed to the same decisions, whatever went into the scheduler and wherever a
segment began."""

from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.engine.recording.flight_file import read_segment
from quire.engine.recording.inputs import Scheduled
from quire.scheduler.config import SchedulerConfig
from quire.simulation.replay import replay
from tests.engine.recording.recorded import Inputs, Recorded, cache_configs, scheduler_configs


@given(st.data(), scheduler_configs, cache_configs, st.sampled_from([0.0, 2.0, 1e9]))
def test_a_record_is_replayed_to_the_same_decisions(
    data: st.DataObject, config: SchedulerConfig, cache: CacheConfig, segment_s: float
) -> None:
    with closing(Recorded(config, cache, segment_s)) as recorded:
        inputs = Inputs(data.draw, recorded.scheduler)
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
        inputs = Inputs(data.draw, recorded.scheduler)
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
        inputs = Inputs(data.draw, recorded.scheduler)
        for _ in range(data.draw(st.integers(1, 20))):
            inputs.give()
        inputs.step()
        (segment,) = recorded.segments
    read = read_segment(segment)
    assert read is not None
    scheduled = [each for each in read.inputs if isinstance(each, Scheduled)]
    altered = data.draw(st.sampled_from(scheduled)).checksum.to_bytes(4, "big")
    assert altered
