"""The engine's end of the channel to the server: frames on a stream socket.

A frame is a length of four bytes, little-endian, and a MessagePack body of so many bytes.
"""

import select
import socket
import threading
from contextlib import suppress

import msgspec

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
LAST_S = 1.0
"""Seconds for which a last message waits for the current one."""
_READ_BYTES = 1 << 18


def frame(body: bytes) -> bytes:
    """Return `body` with its length before it. Raises ValueError beyond MAX_FRAME_BYTES."""
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class ChannelClosed(Exception):
    """The other end of the channel is gone."""


class Channel:
    """Sends block; a receive either waits for a frame or returns only what has arrived."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message as a frame. Raises ChannelClosed."""
        body = frame(self._encoder.encode(message))
        with self._sending:
            try:
                self._socket.sendall(body)
            except OSError as error:
                raise ChannelClosed(str(error)) from error

    def send_last(self, message: msgspec.Struct) -> None:
        """Send, in any thread, the message after which this process ends, if the other end takes it
        soon. Nothing can be sent after it."""
        if self._sending.acquire(timeout=LAST_S):
            with suppress(OSError):
                self._socket.send(frame(msgspec.msgpack.encode(message)), socket.MSG_DONTWAIT)

    def wait(self, seconds: float) -> bool:
        """Wait until a message arrives or the other end closes, for at most `seconds`;
        return whether it did."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return bool(readable)

    def receive(self, *, wait: bool) -> list[bytes]:
        """Return the bodies of all complete frames; with `wait`, wait for at least one. Raises
        ChannelClosed when the other end has closed.
        """
        while self._read(wait=False):
            pass
        bodies = self._take_frames()
        while wait and not bodies:
            self._read(wait=True)
            bodies = self._take_frames()
        return bodies

    def _read(self, *, wait: bool) -> bool:
        """Append arrived bytes to the buffer; return False if there are none and `wait` is not."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            data = self._socket.recv(_READ_BYTES, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the server has closed the channel")
        self._buffer += data
        return True

    def _take_frames(self) -> list[bytes]:
        """Remove the complete frames from the buffer and return their bodies."""
        bodies, start = [], 0
        while len(self._buffer) >= (first := start + LENGTH_BYTES):
            end = first + int.from_bytes(self._buffer[start:first], "little")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[first:end]))
            start = end
        del self._buffer[:start]
        return bodies
