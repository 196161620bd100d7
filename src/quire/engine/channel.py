"""Frames on a stream socket: four bytes of length, then a MessagePack body. The engine's end of
it.
"""

import socket

import msgspec

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
_READ_BYTES = 1 << 18


def frame(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel:
    """Blocking sends; receives that either wait for a frame or take only what has arrived."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: msgspec.Struct) -> None:
        try:
            self._socket.sendall(frame(self._encoder.encode(message)))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, *, wait: bool) -> list[bytes]:
        """The bodies of all complete frames; with `wait`, at least one. Raises ChannelClosed at the
        end.
        """
        while self._read(wait=False):
            pass
        bodies = self._take_frames()
        while wait and not bodies:
            self._read(wait=True)
            bodies = self._take_frames()
        return bodies

    def _read(self, *, wait: bool) -> bool:
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            data = self._socket.recv(_READ_BYTES, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the server has closed the line")
        self._buffer += data
        return True

    def _take_frames(self) -> list[bytes]:
        """Cut the complete frames off the buffer."""
        bodies, start = [], 0
        while len(self._buffer) >= (first := start + LENGTH_BYTES):
            end = first + int.from_bytes(self._buffer[start:first], "little")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[first:end]))
            start = end
        del self._buffer[:start]
        return bodies
