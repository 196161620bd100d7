"""One other engine that offers its blocks: what it has, and reading them.

A thread keeps a mirror of its keys, so that a prompt is looked up without asking. A peer that does
not answer in time, or breaks off, has nothing until it can be reached again, and is tried again
ever more rarely.
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from threading import Event, Thread
from typing import NamedTuple

from quire.storage.disk.block_header import CHECKSUM_BYTES
from quire.storage.disk.extent_file import Block, LookupOutcome, is_whole
from quire.storage.network.address import Address
from quire.storage.network.wire import (
    ALIVE_S,
    HANDSHAKE_S,
    MAX_ENTRY_BYTES,
    MAX_KEYS,
    NONCE_BYTES,
    SIZES,
    Credentials,
    FrameKind,
    PeerRefused,
    PeerSocket,
    Purpose,
    ask_in,
    frames_of,
    read_frame,
)

logger = logging.getLogger(__name__)

SILENT_S = 5 * ALIVE_S
"""Seconds of silence after which a peer counts as gone."""
READ_S = 2.0
"""Seconds for requested blocks to arrive; after that they are computed."""
LEAST_BYTES_S = 10e6
"""A question for more bytes than come in READ_S so has as long as they take: a state of recurrent
layers may have many megabytes."""
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 30.0
MAX_MIRRORED = 1 << 20
"""No more blocks of one peer are known, at about 100 bytes each."""


class PeerAnswer(NamedTuple):
    """An answer of a peer: `num_whole` of the first blocks came, and it was `ended_by` one that was
    MISSING or BAD, or by the last."""

    num_whole: int
    ended_by: LookupOutcome


class Peer:
    """The engine at `address`, which is reached from the beginning on until `close`."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self._keys: set[bytes] = set()
        self._void: set[bytes] = set()
        self._mirror: PeerSocket | None = None
        self._idle: deque[PeerSocket] = deque()
        self._closing = Event()
        self._is_warned = False
        self._pause_s = FIRST_PAUSE_S
        name = f"KV transfer from {address}"
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        """Whether the blocks of the peer are known and can be requested."""
        return self._mirror is not None

    @property
    def num_blocks(self) -> int:
        return len(self._keys)

    def has(self, key: bytes) -> bool:
        """Return whether it offers a block, as far as is known."""
        return key in self._keys

    def read(self, blocks: Sequence[Block]) -> PeerAnswer:
        """Read blocks into their rows, up to the first missing or wrong one. Raises OSError where
        the peer is not reached or too slow; then it has nothing for a while."""
        num_bytes = sum(len(block.row) for block in blocks)
        end_s = time.monotonic() + max(READ_S, num_bytes / LEAST_BYTES_S)
        num_whole = 0
        try:
            for start in range(0, len(blocks), MAX_KEYS):
                answer = self._ask(blocks[start : start + MAX_KEYS], end_s)
                num_whole += answer.num_whole
                if answer.ended_by is not LookupOutcome.WHOLE:
                    self._keys.discard(blocks[num_whole].key)
                    return PeerAnswer(num_whole, answer.ended_by)
        except OSError as error:
            self._lose(error)
            raise
        self._pause_s = FIRST_PAUSE_S
        return PeerAnswer(num_whole, LookupOutcome.WHOLE)

    def void(self) -> None:
        """Ask for none of the blocks that it has now, unless it comes to have them anew."""
        keys, self._keys = self._keys, set()
        self._void = keys if len(self._void) > MAX_MIRRORED else self._void | keys

    def close(self) -> None:
        """Ask for nothing more."""
        self._closing.set()
        mirror = self._mirror
        if mirror is not None:
            mirror.close()
        while self._idle:
            self._idle.popleft().close()

    def _connect(self, purpose: Purpose, end_s: float) -> PeerSocket:
        wait_s = max(end_s - time.monotonic(), 0.001)
        wire = PeerSocket(socket.create_connection(self._address, wait_s))
        try:
            ask_in(wire, self._credentials, os.urandom(NONCE_BYTES), purpose, end_s)
        except BaseException:
            wire.close()
            raise
        return wire

    def _ask(self, blocks: Sequence[Block], end_s: float) -> PeerAnswer:
        """Ask for blocks by a connection that was used before, or a new one where that is closed
        by now."""
        try:
            return self._exchange(self._idle.pop(), blocks, end_s)
        except TimeoutError:
            raise
        except (IndexError, OSError):
            return self._exchange(self._connect(Purpose.BLOCKS, end_s), blocks, end_s)

    def _exchange(self, wire: PeerSocket, blocks: Sequence[Block], end_s: float) -> PeerAnswer:
        is_clean = False
        try:
            wire.send(frames_of(FrameKind.ASKED, [block.key for block in blocks]), end_s)
            answer = _read_answer(wire, blocks, end_s)
            is_clean = answer.ended_by is not LookupOutcome.BAD
        finally:
            if is_clean and not self._closing.is_set():
                self._idle.append(wire)
            else:
                wire.close()
        return answer

    def _lose(self, error: OSError) -> None:
        """Have nothing of the peer until it is reached again."""
        self._keys = set()
        mirror = self._mirror
        if mirror is not None:
            self._warn(error)
            mirror.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow(self._connect(Purpose.KEYS, time.monotonic() + HANDSHAKE_S))
            except OSError as error:
                self._warn(error)
            self._mirror = None
            self._keys = set()
            if self._closing.wait(self._pause_s):
                return
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _follow(self, wire: PeerSocket) -> None:
        """Mirror the keys of the peer until that ends by an OSError."""
        self._mirror = wire
        try:
            if self._closing.is_set():
                return
            logger.info("blocks are had from %s", self._address)
            self._is_warned = False
            began_s = time.monotonic()
            while True:
                frame = read_frame(wire, time.monotonic() + SILENT_S)
                self._note(frame.kind, frame.keys)
                if time.monotonic() - began_s > MAX_PAUSE_S:
                    self._pause_s = FIRST_PAUSE_S
        finally:
            wire.close()

    def _note(self, kind: FrameKind, keys: Sequence[bytes]) -> None:
        if kind is FrameKind.ADDED:
            room = MAX_MIRRORED - len(self._keys)
            self._keys.update([key for key in keys if key not in self._void][:room])
        elif kind is FrameKind.REMOVED:
            self._keys.difference_update(keys)
            self._void.difference_update(keys)

    def _warn(self, error: OSError) -> None:
        """Log why the peer is not had, once until it is had again."""
        if not self._is_warned and not self._closing.is_set():
            self._is_warned = True
            logger.warning("no blocks are had from %s for now: %s", self._address, error)


def _read_answer(wire: PeerSocket, blocks: Sequence[Block], end_s: float) -> PeerAnswer:
    """Read the answer to a question for these blocks. Raises OSError where it is none."""
    for number, block in enumerate(blocks):
        entry_bytes, row_bytes = SIZES.unpack(wire.read(SIZES.size, end_s))
        if not entry_bytes:
            return PeerAnswer(number, LookupOutcome.MISSING)
        least = len(block.header) + CHECKSUM_BYTES
        if not least <= entry_bytes <= MAX_ENTRY_BYTES or row_bytes != len(block.row):
            raise PeerRefused(f"it sent a block of {entry_bytes} and {row_bytes} bytes")
        entry = wire.read(entry_bytes, end_s)
        wire.read_into(block.row, end_s)
        if not is_whole(block, entry):
            return PeerAnswer(number, LookupOutcome.BAD)
    return PeerAnswer(len(blocks), LookupOutcome.WHOLE)
