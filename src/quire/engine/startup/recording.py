"""Builds the flight recorder of an engine."""

import logging
import os
import time

from quire.cache.config import CacheConfig
from quire.engine.config import EngineConfig
from quire.engine.recording.recorder import FlightRecorder, RecordedConfig
from quire.engine.recording.replayed_scheduler import shape_of
from quire.engine.recording.ring import RingWriter
from quire.scheduler.config import SchedulerConfig

logger = logging.getLogger(__name__)


def build_recorder(
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
