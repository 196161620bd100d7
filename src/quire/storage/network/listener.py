"""Offers the blocks of a store to other engines: their keys, with updates, and their bytes. It runs
in threads beside the engine, and has only the blocks of the store."""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread

from quire.storage.disk.counts import ThreadSafeCounts
from quire.storage.disk.extent_file import StoredBlock
from quire.storage.disk.store import BlockStore
from quire.storage.network.address import Address
from quire.storage.network.counts import TransferStats
from quire.storage.network.wire import (
    ALIVE_S,
    FRAME,
    NONCE_BYTES,
    NOT_HERE,
    SIZES,
    Credentials,
    FrameKind,
    PeerSocket,
    Purpose,
    frames_of,
    let_in,
    read_frame,
)

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_UNTOLD = 1 << 18
"""The maximum number of pending changes of a connection; beyond it the peer must start again."""
SEND_S = 10.0
"""Seconds without reads after which a connection is closed."""
CLOSE_S = 1.0


class _News:
    """The unsent changes of a store for one connection."""

    def __init__(self) -> None:
        self._changes: deque[tuple[bytes, bool]] = deque()
        self._is_there = Event()

    def note(self, key: bytes, is_here: bool) -> None:
        self._changes.append((key, is_here))
        self._is_there.set()

    def take(self, seconds: float) -> list[tuple[FrameKind, list[bytes]]]:
        """Return the new changes in order, after at most `seconds`. Raises OverflowError
        for too many."""
        self._is_there.wait(seconds)
        self._is_there.clear()
        num_changes = len(self._changes)
        if num_changes > MAX_UNTOLD:
            raise OverflowError(f"it is behind by {num_changes} changes")
        runs: list[tuple[FrameKind, list[bytes]]] = []
        for _ in range(num_changes):
            key, is_here = self._changes.popleft()
            kind = FrameKind.ADDED if is_here else FrameKind.REMOVED
            if not runs or runs[-1][0] is not kind:
                runs.append((kind, []))
            runs[-1][1].append(key)
        return runs


class Listener:
    """Offers the blocks of `store` on the socket `listening` to engines with the same
    `credentials`."""

    def __init__(
        self,
        listening: socket.socket,
        store: BlockStore,
        credentials: Credentials,
        counts: ThreadSafeCounts[TransferStats],
    ) -> None:
        self._listening = listening
        self._store = store
        self._credentials = credentials
        self.counts = counts
        self._wires: set[PeerSocket] = set()
        self._lock = Lock()
        self._is_closed = False
        self._thread = Thread(target=self._accept, name="KV transfer listener", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    @property
    def num_asking(self) -> int:
        """The connections that are open."""
        return len(self._wires)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            wires = tuple(self._wires)
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for wire in wires:
            wire.close()
        self._thread.join(CLOSE_S)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, peer = self._listening.accept()
                wire = PeerSocket(connection)
            except OSError:
                if self._is_closed:
                    return
                time.sleep(ALIVE_S)  # as when there are no descriptors left
                continue
            name = f"{peer[0]}:{peer[1]}"
            with self._lock:
                is_let_in = len(self._wires) < MAX_CONNECTIONS and not self._is_closed
                if is_let_in:
                    self._wires.add(wire)
            if not is_let_in:
                self.counts.add(num_refused=1)
                wire.close()
                continue
            Thread(target=self._serve, args=(wire, name), name="KV transfer", daemon=True).start()

    def _serve(self, wire: PeerSocket, name: str) -> None:
        """Answer one connection until it ends."""
        serve: Callable[[PeerSocket], None] | None = None
        try:
            purpose = let_in(wire, self._credentials, os.urandom(NONCE_BYTES))
            serve = self._tell_keys if purpose is Purpose.KEYS else self._send_blocks
            serve(wire)
        except (OSError, OverflowError) as error:
            if serve is None and not self._is_closed:
                self.counts.add(num_refused=1)
                logger.warning("blocks are not offered to %s: %s", name, error)
            else:
                logger.debug("blocks are offered to %s no more: %s", name, error)
        finally:
            with self._lock:
                self._wires.discard(wire)
            wire.close()

    def _tell_keys(self, wire: PeerSocket) -> None:
        """Send the keys of all blocks, and then the changes."""
        news = _News()
        keys = self._store.watch(news.note)
        try:
            wire.send(frames_of(FrameKind.ADDED, keys), time.monotonic() + SEND_S)
            while True:
                frames = [frames_of(kind, some) for kind, some in news.take(ALIVE_S)]
                data = b"".join(frames) or FRAME.pack(FrameKind.ALIVE, 0)
                wire.send(data, time.monotonic() + SEND_S)
        finally:
            self._store.unwatch(news.note)

    def _send_blocks(self, wire: PeerSocket) -> None:
        """Send the requested blocks."""
        while True:
            keys = read_frame(wire, None).keys
            began, num_sent, num_bytes = time.perf_counter(), 0, 0
            try:
                with _Files() as files:
                    for key in keys:
                        stored = self._store.stored(key)
                        row_bytes = 0 if stored is None else _send_block(wire, stored, files)
                        if not row_bytes:
                            wire.send(NOT_HERE, time.monotonic() + SEND_S)
                            break
                        num_sent, num_bytes = num_sent + 1, num_bytes + row_bytes
            finally:
                seconds = time.perf_counter() - began
                self.counts.add(num_sent=num_sent, sent_bytes=num_bytes, send_s=seconds)


class _Files:
    """The file that a block was last sent from, since the next one is mostly there too."""

    def __init__(self) -> None:
        self._path = ""
        self._descriptor = -1

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def opened(self, path: str) -> int:
        """Return the descriptor of a file. Raises OSError."""
        if path != self._path or self._descriptor < 0:
            self.__exit__()
            self._descriptor, self._path = os.open(path, os.O_RDONLY | os.O_NOFOLLOW), path
        return self._descriptor


def _send_block(wire: PeerSocket, stored: StoredBlock, files: _Files) -> int:
    """Send a block as it is in its file; return the bytes of its row, 0 if it is not there."""
    try:
        file = files.opened(stored.path)
        entry = os.pread(file, stored.entry_bytes, stored.entry_offset)
    except OSError:
        return 0
    end = stored.row_offset + stored.row_bytes
    if entry == bytes(stored.entry_bytes) or os.fstat(file).st_size < end:
        return 0
    end_s = time.monotonic() + SEND_S
    head = SIZES.pack(stored.entry_bytes, stored.row_bytes) + entry
    wire.send(head, end_s, has_more=True)
    wire.send_file(file, stored.row_offset, stored.row_bytes, end_s)
    return stored.row_bytes


def open_socket(address: Address) -> socket.socket:
    """Return a socket that listens on `address`. Raises OSError where that cannot be done."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server(tuple(address), family=family, backlog=MAX_CONNECTIONS)
