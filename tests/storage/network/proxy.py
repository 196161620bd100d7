"""A wire between two ends that changes, cuts or holds what goes over it."""

import socket
from contextlib import suppress
from threading import Event, Thread

from quire.storage.network.address import Address


class Proxy:
    """Passes bytes on to `to`. Of the answers on every connection but the first, the byte at
    `flip_at` is changed, and nothing comes from `cut_at` on. While it holds, nothing passes."""

    def __init__(
        self, to: Address, *, flip_at: int | None = None, cut_at: int | None = None
    ) -> None:
        self._to = to
        self._flip_at, self._cut_at = flip_at, cut_at
        self._goes_on = Event()
        self._goes_on.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listening.getsockname()[1])
        self._accepts = Thread(target=self._accept, daemon=True)
        self._accepts.start()

    def hold(self) -> None:
        """Let nothing pass from now on."""
        self._goes_on.clear()

    def cut(self) -> None:
        """End all connections, and take no more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._goes_on.set()
        self._accepts.join()
        self._listening.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                asks, _ = self._listening.accept()
            except OSError:
                return
            offers = socket.create_connection(self._to)
            is_changed = bool(self._sockets)
            self._sockets += (asks, offers)
            for args in ((asks, offers, False), (offers, asks, is_changed)):
                self._threads.append(Thread(target=self._pass, args=args, daemon=True))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, to: socket.socket, is_changed: bool) -> None:
        num_passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._goes_on.wait()
                to.sendall(self._changed(data, num_passed) if is_changed else data)
                num_passed += len(data)
                if is_changed and self._cut_at is not None and num_passed >= self._cut_at:
                    break
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _changed(self, data: bytes, num_passed: int) -> bytes:
        """Return bytes, which come behind so many, as they are passed on."""
        changed = bytearray(data)
        if self._flip_at is not None and 0 <= self._flip_at - num_passed < len(data):
            changed[self._flip_at - num_passed] ^= 1
        if self._cut_at is not None:
            del changed[max(self._cut_at - num_passed, 0) :]
        return bytes(changed)
