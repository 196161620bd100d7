"""Builds the scheduler and the cache of an engine, with recording and tracing if configured."""

import logging
import os
import time
from dataclasses import replace

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.engine.config import EngineConfig
from quire.engine.recording.recorded_scheduler import RecordedScheduler
from quire.engine.recording.recorder import FlightRecorder, RecordedConfig
from quire.engine.recording.replayed_scheduler import shape_of
from quire.engine.recording.ring import RingWriter
from quire.engine.tracing import TracedKVCache, Tracing
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)


def build_scheduler(
    config: EngineConfig,
    scheduling: SchedulerConfig,
    cache_config: CacheConfig,
    tracing: Tracing | None,
) -> tuple[KVCache, Scheduler]:
    """Return a cache and a scheduler over it."""
    recorder = _build_recorder(config, scheduling, cache_config)
    if recorder is not None:
        cache_config = replace(cache_config, block_hash=recorder.block_hash)
    cache = (
        KVCache(cache_config) if tracing is None else TracedKVCache(cache_config, tracing.tracer)
    )
    if recorder is None:
        return cache, Scheduler(scheduling, cache)
    return cache, RecordedScheduler(scheduling, cache, recorder)


def _build_recorder(
    config: EngineConfig, scheduling: SchedulerConfig, cache: CacheConfig
) -> FlightRecorder | None:
    """Return a recorder that writes to the memory that the engine was started with; None if there
    is none."""
    if config.ring_fd is None:
        return None
    try:
        ring = RingWriter(config.ring_fd)
        os.close(config.ring_fd)
    except (OSError, ValueError) as error:
        logger.warning("nothing is recorded: the flight recorder has no memory: %s", error)
        return None
    return FlightRecorder(
        ring,
        RecordedConfig(scheduling, shape_of(cache)),
        cache.block_hash,
        time.time,
        config.recording.flight_recorder_minutes,
    )
