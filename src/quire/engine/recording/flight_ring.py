"""The server's end of a flight recorder: the memory that the engine writes to, and the files that
it is kept in when the engine has ended.
"""

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from threading import Thread

from quire import __version__
from quire.engine.config import EngineConfig
from quire.engine.recording.flight_file import FORMAT, FlightHead, write_file
from quire.engine.recording.ring import read_ring

logger = logging.getLogger(__name__)


class FlightRing:
    """The memory of one engine's recorder, behind the descriptor `fd`, which the engine has too."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._folder = Path(gettempdir()) / f"quire-flight-{os.getuid()}"
        self._model = ""
        self._is_shared = False

    def configured(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration of an engine that records into this memory, if it is to; files
        go where it says."""
        recording = config.recording
        self._model = config.model.model
        if recording.flight_recorder_dir is not None:
            self._folder = Path(recording.flight_recorder_dir)
        return replace(config, ring_fd=self.fd) if recording.flight_recorder_minutes else config

    def dump(self, reason: str) -> Path | None:
        """Write what was recorded until now to a file, while the engine may go on, and return its
        path; None where nothing was recorded. Raises OSError."""
        segments = read_ring(self.fd)
        if not segments:
            return None
        now_s = time.time()
        head = FlightHead(FORMAT, __version__, now_s, reason, self._model)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        name = f"{stamp}-{time.monotonic_ns() % 10**9:09d}"
        return write_file(self._folder, head, (each.data for each in segments), name)

    def keep(self, reason: str) -> None:
        """Write the record of an engine that has ended, in a thread, and say where; then give the
        memory back."""
        self._is_shared = True
        Thread(target=self._keep, args=(reason,), name="flight record").start()

    def close(self) -> None:
        """Give the memory back, unless a thread is at work on it, which then does."""
        if not self._is_shared:
            self._is_shared = True
            os.close(self.fd)

    def _keep(self, reason: str) -> None:
        try:
            path = self.dump(reason)
        except OSError as error:
            logger.warning("the flight record of the engine cannot be written: %s", error)
            return
        finally:
            os.close(self.fd)
        if path is not None:
            logger.warning("what led to the end of the engine: quire replay %s", path)
