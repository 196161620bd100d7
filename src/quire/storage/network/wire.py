"""The wire format between an engine that offers blocks and one that fetches them, over TCP.

    offers -> asks    magic | nonce
    asks -> offers    nonce | fingerprint | purpose | proof
    offers -> asks    verdict | proof

A proof is an HMAC over all that was said, by the secret that both have: neither end tells or takes
a block before the other has proven that it knows it. Nothing is encrypted.

    a frame           kind | length | (length | key)...
    for keys          frames: these were added, those removed, or nothing new
    for blocks        a frame of the keys that are asked for, and for each of these blocks
                      entry length | row length | entry | row

An entry is a block's header in its file, with the checksum over header and row: it goes from the
disk of one engine to the comparison of the other unchanged. The first block that is not there is
answered by two zeros, and ends the answer.
"""

import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

MAGIC = b"QUIREKV1"
NONCE_BYTES = PROOF_BYTES = 32
MAX_FRAME_BYTES = 1 << 16
MAX_KEYS = 1024
"""The most keys of one frame. They have some 34 bytes each."""
MAX_ENTRY_BYTES = 1 << 16
HANDSHAKE_S = 2.0
"""Seconds without an answer after which a peer counts as gone."""
ALIVE_S = 1.0
"""Seconds after which an engine without changes sends an empty update."""
FRAME = struct.Struct("<BI")
SIZES = struct.Struct("<IQ")
NOT_HERE = SIZES.pack(0, 0)


class Purpose(IntEnum):
    """The purpose of a connection: keys or blocks."""

    KEYS = 1
    BLOCKS = 2


class Verdict(IntEnum):
    """The answer to a peer that has proven to know the secret."""

    WELCOME = 0
    OTHER_MODEL = 1


class FrameKind(IntEnum):
    """The kind of a frame: nothing is new, its keys were added or removed, or are asked for."""

    ALIVE = 0
    ADDED = 1
    REMOVED = 2
    ASKED = 3


class PeerRefused(ConnectionError):
    """The other end is none that blocks are had from, or given to."""


class Credentials(NamedTuple):
    """The model of an engine by its fingerprint, and the secret that it shares with its peers."""

    fingerprint: bytes
    secret: bytes


class Frame(NamedTuple):
    kind: FrameKind
    keys: tuple[bytes, ...]


class PeerSocket:
    """A connected socket. Every call ends at a time, `end_s` of `time.monotonic`, by TimeoutError,
    which is an OSError as all that it raises."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, data: bytes, end_s: float, *, has_more: bool = False) -> None:
        """Send all bytes; `has_more` delays them to join those that follow."""
        self.socket.settimeout(_left(end_s))
        self.socket.sendall(data, socket.MSG_MORE if has_more else 0)

    def send_file(self, descriptor: int, offset: int, num_bytes: int, end_s: float) -> None:
        """Send bytes of a file without copying them through this process."""
        end = offset + num_bytes
        while offset < end:
            try:
                num_sent = os.sendfile(self.socket.fileno(), descriptor, offset, end - offset)
            except BlockingIOError:
                writable = select.poll()  # which takes descriptors of any number
                writable.register(self.socket, select.POLLOUT)
                writable.poll(1000.0 * _left(end_s))
                continue
            if not num_sent:
                raise ConnectionAbortedError("a file was cut while it was sent")
            offset += num_sent

    def read(self, num_bytes: int, end_s: float | None) -> bytes:
        """Return `num_bytes` bytes; without a deadline, whenever they come."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), end_s)
        return bytes(data)

    def read_into(self, view: memoryview, end_s: float | None) -> None:
        """Fill the bytes of `view`."""
        num_read = 0
        while num_read < len(view):
            self.socket.settimeout(None if end_s is None else _left(end_s))
            num_more = self.socket.recv_into(view[num_read:])
            if not num_more:
                raise ConnectionResetError("the connection was closed")
            num_read += num_more

    def close(self) -> None:
        """Close it, also while another thread waits for it."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self.socket.close()


def _left(end_s: float) -> float:
    left = end_s - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("no answer in time")
    return left


def proof_of(secret: bytes, role: bytes, said: Iterable[bytes]) -> bytes:
    """Return the proof of one end, by its `role`, over what was said: 32 bytes."""
    return hmac.digest(secret, role + b"".join(said), sha256)


def ask_in(
    wire: PeerSocket, credentials: Credentials, nonce: bytes, purpose: Purpose, end_s: float
) -> None:
    """Begin a connection as the fetching end. Raises PeerRefused, or another OSError."""
    fingerprint, secret = credentials
    hello = wire.read(len(MAGIC) + NONCE_BYTES, end_s)
    if hello[: len(MAGIC)] != MAGIC:
        raise PeerRefused("it does not speak of blocks, or another version of Quire does")
    said = (hello, nonce, fingerprint, bytes([purpose]))
    wire.send(b"".join(said[1:]) + proof_of(secret, b"asks", said), end_s)
    try:
        answer = wire.read(1 + PROOF_BYTES, end_s)
    except ConnectionResetError:
        raise PeerRefused("it closed the connection: another --kv-transfer-secret-file?") from None
    if not hmac.compare_digest(answer[1:], proof_of(secret, b"offers", (*said, answer[:1]))):
        raise PeerRefused("it does not know the secret of --kv-transfer-secret-file")
    if answer[0] != Verdict.WELCOME:
        raise PeerRefused("it serves another model, or the same in another way")


def let_in(wire: PeerSocket, credentials: Credentials, nonce: bytes) -> Purpose:
    """Begin a connection as the end that offers; return what it is for. Raises PeerRefused, or
    another OSError."""
    fingerprint, secret = credentials
    end_s = time.monotonic() + HANDSHAKE_S
    hello = MAGIC + nonce
    wire.send(hello, end_s)
    asked = wire.read(NONCE_BYTES + len(fingerprint) + 1, end_s)
    proof = wire.read(PROOF_BYTES, end_s)
    if not hmac.compare_digest(proof, proof_of(secret, b"asks", (hello, asked))):
        raise PeerRefused("it does not know the secret")
    is_ours = asked[NONCE_BYTES:-1] == fingerprint
    verdict = bytes([Verdict.WELCOME if is_ours else Verdict.OTHER_MODEL])
    wire.send(verdict + proof_of(secret, b"offers", (hello, asked, verdict)), end_s)
    if not is_ours:
        raise PeerRefused("it serves another model, or the same in another way")
    try:
        return Purpose(asked[-1])
    except ValueError:
        raise PeerRefused(f"it asks for {asked[-1]}, which is nothing") from None


def pack_keys(keys: Iterable[bytes]) -> bytes:
    """Return keys as bytes, each behind its length."""
    return b"".join(bytes([len(key)]) + key for key in keys)


def frames_of(kind: FrameKind, keys: Sequence[bytes]) -> bytes:
    """Return frames with these keys."""
    frames = []
    for start in range(0, len(keys), MAX_KEYS):
        body = pack_keys(keys[start : start + MAX_KEYS])
        frames.append(FRAME.pack(kind, len(body)) + body)
    return b"".join(frames)


def read_frame(wire: PeerSocket, end_s: float | None) -> Frame:
    """Return the next frame, which is waited for until `end_s`. Raises OSError where it is none."""
    kind, num_bytes = FRAME.unpack(wire.read(FRAME.size, end_s))
    if num_bytes > MAX_FRAME_BYTES or kind not in tuple(FrameKind):
        raise PeerRefused(f"it sent a frame of kind {kind} and {num_bytes} bytes")
    body = wire.read(num_bytes, time.monotonic() + HANDSHAKE_S)
    keys, at = [], 0
    while at < num_bytes:
        end = at + 1 + body[at]
        if end > num_bytes:
            raise PeerRefused("it sent a frame that is cut short")
        keys.append(body[at + 1 : end])
        at = end
    return Frame(FrameKind(kind), tuple(keys))
