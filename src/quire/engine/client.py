"""The server's client of the engine process: starts it, submits requests, returns their deltas.

One reader task owns everything that comes back. A request's stream ends exactly once, whatever
happens to the engine: with its finish, with `Refused`, or with `EngineDown`.
"""

import asyncio
import logging
import subprocess
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from quire.cache.sharing import SharingTerms
from quire.engine.channel import LENGTH_BYTES, frame
from quire.engine.config import EngineConfig
from quire.engine.launch import LaunchedEngine, launch
from quire.engine.messages import (
    Abort,
    EngineFacts,
    EngineOutput,
    Failed,
    FromEngine,
    Loading,
    Probe,
    Ready,
    ResetPrefixCache,
    Submit,
)
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Delta, Refusal

logger = logging.getLogger(__name__)

READ_LIMIT_BYTES = 1 << 22
ENDED_POLL_S = 0.01
MAX_PROBES = 32
"""So many probes of the prefix cache may be unanswered."""
MAX_UNREAD_BYTES = 32 << 20
"""No request is sent while the engine has left more bytes than these unread."""


class Phase(StrEnum):
    """The state of the engine process."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DOWN = "down"


class Refused(Exception):
    """The scheduler did not accept the request; `refusal` has the reason and the numbers."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineDown(Exception):
    """The engine process has ended or could not start; the text is for people."""


class TokenStream:
    """The deltas of one submitted request: `async for delta in stream`, once it is `accepted`.

    Iteration ends after the delta that has a finish; it raises EngineDown if the engine ends first.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_accepted = False
        self._deltas: deque[Delta] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._refusal: Refusal | None = None
        self._down_reason: str | None = None

    async def accepted(self) -> None:
        """Wait until the scheduler has accepted the request. Raises Refused or EngineDown."""
        while not self.is_accepted:
            if self._refusal is not None:
                raise Refused(self._refusal)
            await self._more()

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._ended:
                raise StopAsyncIteration
            await self._more()
        return self._deltas.popleft()

    async def _more(self) -> None:
        """Wait until something changes. Raises EngineDown if the engine has ended."""
        if self._down_reason is not None:
            raise EngineDown(self._down_reason)
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def accept(self) -> None:
        """Record that the scheduler has accepted the request; called by the client."""
        self.is_accepted = True
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """Record that the scheduler has refused the request, which ends the stream."""
        self._refusal = refusal
        self._wake()

    def put(self, delta: Delta) -> None:
        """Append the next delta; called by the client."""
        self._deltas.append(delta)
        self._ended = delta.finish is not None
        self._wake()

    def fail(self, down_reason: str) -> None:
        """Record that the engine is down, which ends the stream."""
        self._down_reason = down_reason
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """Starts one engine process and exchanges messages with it, on the running event loop.

    `phase`, `progress` (phase name, done, total), `facts` (once ready) and `down_reason` may be
    read at any time. `on_output` is called in the event loop with every EngineOutput, before its
    deltas reach their streams. `launched` is an engine process that was started with `config`.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_output: Callable[[EngineOutput], None],
        launched: LaunchedEngine | None = None,
    ) -> None:
        self.phase = Phase.STARTING
        self.progress: tuple[str, int, int] = ("process", 0, 1)
        self.facts: EngineFacts | None = None
        self.down_reason: str | None = None
        self._config = config
        self._launched = launched
        self._on_output = on_output
        self._streams: dict[str, TokenStream] = {}
        self._accepting: dict[str, TokenStream] = {}
        self._probes: dict[str, asyncio.Future[PrefixProbe]] = {}
        self._num_probes = 0
        self._last_progress_s = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._closing = False
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def process_id(self) -> int | None:
        """The id of the engine's process, or None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def num_unfinished(self) -> int:
        """The number of requests that were submitted and have not ended."""
        return len(self._streams)

    def last_progress_age_s(self) -> float:
        """Return the seconds since the engine last completed a step, or 0 while it has no work."""
        return time.monotonic() - self._last_progress_s if self._streams else 0.0

    async def start(self) -> None:
        """Start the process unless it runs already, and return at once: `phase` and `progress` tell
        how far loading is."""
        launched = self._launched
        if launched is None:
            launched = await asyncio.to_thread(launch, self._config)
        self._process = launched.process
        reader, self._writer = await asyncio.open_connection(
            sock=launched.socket, limit=READ_LIMIT_BYTES
        )
        self.phase = Phase.LOADING
        self._reader_task = asyncio.create_task(self._read(reader, self._process))

    def submit(self, request: NewRequest) -> TokenStream:
        """Send a request to the engine; its stream tells whether the scheduler has `accepted` it.

        Raises EngineDown; raises Refused if the id is in use or too much is unanswered already.
        """
        if self.phase is not Phase.READY:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        if request.id in self._streams:
            raise Refused(Refusal(request.id, Reason.DUPLICATE_ID, "this request id is in use"))
        self._refuse_beyond_bounds(request.id)
        if not self._streams:
            self._last_progress_s = time.monotonic()
        body = self._encoder.encode(Submit(request))
        stream = TokenStream(request.id)
        self._streams[request.id] = self._accepting[request.id] = stream
        self._send(body)
        return stream

    def _refuse_beyond_bounds(self, request_id: str) -> None:
        """Raise Refused if the engine has left as much unanswered as it could ever accept."""
        most = self._config.scheduling.max_num_queued_reqs + (
            self.facts.max_num_seqs if self.facts else 0
        )
        num_unread = 0 if self._writer is None else self._writer.transport.get_write_buffer_size()
        if len(self._accepting) < most and num_unread <= MAX_UNREAD_BYTES:
            return
        message = (
            f"the engine has not answered {len(self._accepting)} requests nor read {num_unread} "
            f"bytes of them; at most {most} requests and {MAX_UNREAD_BYTES} bytes are kept for it"
        )
        raise Refused(Refusal(request_id, Reason.QUEUE_FULL, message))

    def abort(self, request_id: str) -> None:
        """End a request unless it has ended; its stream ends with a finish, a step after the engine
        has read this (behind megabytes of new prompts that may take some steps).
        """
        if request_id in self._streams:
            self._send(self._encoder.encode(Abort(request_id)))

    def reset_prefix_cache(self) -> None:
        """Make what is cached now unfindable for requests submitted after this. `num_resets` in the
        next outputs tells when it was done. Raises EngineDown.
        """
        if self.phase is not Phase.READY:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        self._send(self._encoder.encode(ResetPrefixCache()))

    async def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe:
        """Return what of a prompt is cached when the engine has read this, between two steps.

        Raises EngineDown; raises Refused if too many probes are unanswered already.
        """
        if self.phase is not Phase.READY:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        self._num_probes += 1
        probe_id = f"probe-{self._num_probes}"
        if len(self._probes) >= MAX_PROBES:
            message = f"the engine has not answered {len(self._probes)} probes"
            raise Refused(Refusal(probe_id, Reason.QUEUE_FULL, message))
        answer: asyncio.Future[PrefixProbe] = asyncio.get_running_loop().create_future()
        self._probes[probe_id] = answer
        self._send(self._encoder.encode(Probe(probe_id, token_ids, sharing)))
        try:
            return await answer
        finally:
            del self._probes[probe_id]

    async def close(self) -> None:
        """End the engine process: close the socket, and kill it if it takes too long."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            await _ended(self._process, patience_s=5.0)
        if self._reader_task is not None:
            await self._reader_task

    def _send(self, body: bytes) -> None:
        if self._writer is not None:
            self._writer.write(frame(body))

    async def _read(self, reader: asyncio.StreamReader, process: subprocess.Popen[bytes]) -> None:
        """Read messages until the socket closes, then end every stream."""
        decoder = msgspec.msgpack.Decoder[FromEngine](Loading | Ready | Failed | EngineOutput)
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                self._take(decoder.decode(await reader.readexactly(length)))
                await asyncio.sleep(0)  # let other tasks run between messages
        except (asyncio.IncompleteReadError, OSError):
            pass  # the engine has closed the socket
        except Exception as error:
            logger.exception("the engine's messages cannot be used")
            self.down_reason = f"the engine's messages cannot be used: {error}"
        await self._go_down(process)

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, EngineOutput):
            self._take_output(message)
        elif isinstance(message, Loading):
            self.progress = (message.phase, message.done, message.total)
        elif isinstance(message, Ready):
            self.facts = message.facts
            self.phase = Phase.READY
        else:
            self.down_reason = message.message

    def _take_output(self, output: EngineOutput) -> None:
        self._last_progress_s = time.monotonic()
        self._on_output(output)
        for request_id in output.accepted:
            stream = self._accepting.pop(request_id, None)
            if stream is not None:
                stream.accept()
        for refusal in output.refused:
            stream = self._accepting.pop(refusal.request_id, None)
            self._streams.pop(refusal.request_id, None)
            if stream is not None:
                stream.refuse(refusal)
        for probe_id, found in output.probes:
            answer = self._probes.get(probe_id)
            if answer is not None and not answer.done():
                answer.set_result(found)
        for delta in output.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is None:
                continue
            if delta.finish is not None:
                del self._streams[delta.request_id]
            stream.put(delta)

    async def _go_down(self, process: subprocess.Popen[bytes]) -> None:
        """End every stream at once, since the socket is closed, then wait for the exit code."""
        is_reported = (
            self.facts is None and self.down_reason is not None
        )  # whoever waits for the start reports it
        self.phase = Phase.DOWN
        if self.down_reason is None:
            self.down_reason = "the engine process has ended"
        for stream in self._streams.values():
            stream.fail(self.down_reason)
        for answer in self._probes.values():
            if not answer.done():
                answer.set_exception(EngineDown(self.down_reason))
        if self._writer is not None:
            self._writer.close()
        self._accepting.clear()
        self._streams.clear()
        code = await _ended(process, patience_s=5.0)
        if not self._closing and not is_reported:
            logger.error("%s (exit code %d)", self.down_reason, code)


async def _ended(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Return the exit code of the process, which is killed after `patience_s` seconds."""
    deadline_s = time.monotonic() + patience_s
    while (code := process.poll()) is None:
        if time.monotonic() > deadline_s:
            process.kill()
        await asyncio.sleep(ENDED_POLL_S)
    return code
