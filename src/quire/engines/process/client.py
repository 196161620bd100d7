"""The server's end of one engine process: starts it, sends it messages, hands on its outputs, and
tells how it ended. `supervisor.py` opens one after another.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from quire.engine.channel import LENGTH_BYTES, frame
from quire.engine.messages import (
    EngineFacts,
    EngineFailure,
    EngineOutput,
    FromEngine,
    LoadingProgress,
    Ready,
    ToEngine,
)
from quire.engine.running_record import RunningRecord
from quire.engines.process.flight_ring import FlightRing
from quire.engines.process.launch import LaunchedEngine, ProcessHandle

logger = logging.getLogger(__name__)

READ_LIMIT_BYTES = 1 << 22
ENDED_POLL_S = 0.01
EXIT_PATIENCE_S = 5.0
"""An engine that has closed its socket, or is asked to end, is killed after so long."""


class EnginePhase(StrEnum):
    """The state of an engine. Only one that is supervised is ever `RESTARTING`."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DOWN = "down"


class EngineEnd(NamedTuple):
    """The facts of an engine's end.

    exit_code: the process's; -N where signal N ended it.
    failed: its last message, if it could send one.
    unusable: why its messages could not be used, if they could not.
    ran: the requests that it was at work on; None if that is not known.
    """

    exit_code: int
    failed: EngineFailure | None = None
    unusable: str | None = None
    ran: tuple[str, ...] | None = None

    @property
    def message(self) -> str:
        """The reason why the engine has ended, for people."""
        if self.unusable is not None:
            return f"the engine's messages cannot be used: {self.unusable}"
        return "the engine process has ended" if self.failed is None else self.failed.message


class EngineClient:
    """One engine process, which `launch` starts, on the running event loop.

    `phase`, `progress` (phase name, done, total), `facts` (once ready) and the `ring` of its flight
    recorder may be read at any time.
    `on_output` is called in the event loop with every EngineOutput.
    """

    def __init__(
        self, launch: Callable[[], LaunchedEngine], on_output: Callable[[EngineOutput], None]
    ) -> None:
        self.phase = EnginePhase.STARTING
        self.progress: tuple[str, int, int] = ("process", 0, 1)
        self.facts: EngineFacts | None = None
        self.ring: FlightRing | None = None
        self._launch = launch
        self._on_output = on_output
        self._process: ProcessHandle | None = None
        self._record: RunningRecord | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_settled = asyncio.Event()
        self._failed: EngineFailure | None = None
        self._unusable: str | None = None
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def process_id(self) -> int | None:
        """The id of the engine's process, or None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def num_unread_bytes(self) -> int:
        """The bytes of messages that were sent and not yet taken by the system."""
        return 0 if self._writer is None else self._writer.transport.get_write_buffer_size()

    async def start(self) -> None:
        """Start the process, and return at once: `phase` and `progress` tell how far loading is.
        Raises OSError if it cannot be started."""
        launched = await asyncio.to_thread(self._launch)
        self._process, self._record = launched.process, launched.record
        self.ring = launched.ring
        reader, self._writer = await asyncio.open_connection(
            sock=launched.socket, limit=READ_LIMIT_BYTES
        )
        self.phase = EnginePhase.LOADING
        self._reading = asyncio.create_task(self._read(reader))

    async def loaded(self) -> bool:
        """Wait until the engine is ready or has ended; return whether it is ready."""
        await self._is_settled.wait()
        return self.phase is EnginePhase.READY

    def send(self, message: ToEngine) -> None:
        """Send a message, unless the engine has ended: the socket may be closed some iterations of
        the event loop before the reader knows."""
        writer = self._writer
        if writer is not None and self.phase is not EnginePhase.DOWN and not writer.is_closing():
            writer.write(frame(self._encoder.encode(message)))

    async def drain(self) -> None:
        """Wait until the engine has taken about all that was sent, or has ended."""
        if self._writer is not None and self.phase is not EnginePhase.DOWN:
            try:
                await self._writer.drain()
            except OSError:
                return

    async def disconnected(self) -> None:
        """Wait until nothing more can come from the engine; its process may still end."""
        assert self._reading is not None
        await asyncio.shield(self._reading)

    async def ended(self) -> EngineEnd:
        """Wait until the process has ended, which it must soon once it is disconnected."""
        await self.disconnected()
        assert self._process is not None and self._record is not None
        code = await _ended(self._process, EXIT_PATIENCE_S)
        ran = self._record.read()
        self._record.close()
        return EngineEnd(code, self._failed, self._unusable, ran)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    async def close(self) -> None:
        """End the engine process: close the socket, and kill it if it takes too long."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            await _ended(self._process, EXIT_PATIENCE_S)
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._record is not None:
            self._record.close()
        if self.ring is not None:
            self.ring.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read messages until the socket closes."""
        decoder = msgspec.msgpack.Decoder[FromEngine](
            LoadingProgress | Ready | EngineFailure | EngineOutput
        )
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                self._take(decoder.decode(await reader.readexactly(length)))
                await asyncio.sleep(0)  # let other tasks run between messages
        except (asyncio.IncompleteReadError, OSError):
            pass  # the engine has closed the socket
        except Exception as error:
            logger.exception("the engine's messages cannot be used")
            self._unusable = str(error)
        self.phase = EnginePhase.DOWN
        if self._writer is not None:
            self._writer.close()
        self._is_settled.set()

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, EngineOutput):
            self._on_output(message)
        elif isinstance(message, LoadingProgress):
            self.progress = (message.phase, message.done, message.total)
        elif isinstance(message, Ready):
            self.facts = message.facts
            self.phase = EnginePhase.READY
            self._is_settled.set()
        else:
            self._failed = message


async def _ended(process: ProcessHandle, patience_s: float) -> int:
    """Return the exit code of the process, which is killed after `patience_s` seconds."""
    deadline_s = time.monotonic() + patience_s
    while (code := process.poll()) is None:
        if time.monotonic() > deadline_s:
            process.kill()
        await asyncio.sleep(ENDED_POLL_S)
    return code
