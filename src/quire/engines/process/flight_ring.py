"""The server's end of a flight recorder: the memory that the engine writes to, and the files that
it is kept in when the engine has ended.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from threading import Thread
from typing import NamedTuple

from quire.engine.config import EngineConfig
from quire.engine.recording.contents import contents_of
from quire.engine.recording.flight_file import FORMAT, FileKind, FlightHead, write_file
from quire.engine.recording.ring import RingReader
from quire.version import __version__

logger = logging.getLogger(__name__)


class FlightRecord(NamedTuple):
    """A file that was written: how large it is, and the times of its first and its last step."""

    path: Path
    num_bytes: int
    began_s: float
    ended_s: float
    num_steps: int


class FlightRing:
    """The memory of one engine's recorder, behind the descriptor `fd`, which the engine has too."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._folder = Path(gettempdir()) / f"quire-flight-{os.getuid()}"
        self._model = ""
        self._is_given_back = False

    def configured(self, config: EngineConfig) -> EngineConfig:
        """Return the configuration of an engine that records into this memory, if it is to; files
        go where it says."""
        recording = config.recording
        self._model = config.model.model
        if recording.flight_recorder_dir is not None:
            self._folder = Path(recording.flight_recorder_dir)
        return replace(config, ring_fd=self.fd) if recording.flight_recorder_minutes else config

    async def dump(self) -> FlightRecord | None:
        """Write what was recorded until now to a file, in a thread, while the engine goes on; None
        where nothing was recorded, or the engine has just ended. Raises OSError."""
        if self._is_given_back:
            return None
        reader = RingReader(self.fd)
        return await asyncio.to_thread(self._write, reader, "it was asked for", FileKind.ASKED)

    def keep(self, reason: str, on_kept: Callable[[bool], None]) -> None:
        """Write the record of an engine that has ended, in a thread, and say where; then give the
        memory back. `on_kept` is called in the event loop with whether a file was written, if there
        was anything to write."""
        loop, reader = asyncio.get_running_loop(), RingReader(self.fd)
        self.close()

        def write() -> None:
            is_written = self._keep(reader, reason)
            with suppress(RuntimeError):  # the loop is closed: nobody counts any more
                if is_written is not None:
                    loop.call_soon_threadsafe(on_kept, is_written)

        Thread(target=write, name="flight record").start()

    def close(self) -> None:
        """Give the memory back; a thread that reads it keeps it until it is done."""
        if not self._is_given_back:
            self._is_given_back = True
            os.close(self.fd)

    def _keep(self, reader: RingReader, reason: str) -> bool | None:
        try:
            record = self._write(reader, reason, FileKind.ENGINE_ENDED)
        except OSError as error:
            logger.warning("the flight record of the engine cannot be written: %s", error)
            return False
        if record is None:
            return None
        logger.warning("what led to the end of the engine: quire replay %s", record.path)
        return True

    def _write(self, reader: RingReader, reason: str, kind: FileKind) -> FlightRecord | None:
        contents = contents_of(each.data for each in reader.segments())
        if not contents:
            return None
        now_s = time.time()
        head = FlightHead(FORMAT, __version__, now_s, reason, self._model)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        name = f"{stamp}-{time.monotonic_ns() % 10**9:09d}"
        path = write_file(self._folder, head, (each.data for each in contents), name, kind)
        return FlightRecord(
            path,
            path.stat().st_size,
            contents[0].began_s,
            contents[-1].ended_s,
            sum(each.num_steps for each in contents),
        )
