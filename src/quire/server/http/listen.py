"""Binds the listening socket, or takes over one that is bound, before anything heavy is imported: a
client that connects early is kept waiting by the kernel, not refused.
"""

import os
import socket
import stat

BACKLOG = 65535
"""So many connections may wait as the kernel allows (Linux: `net.core.somaxconn`). A client that is
not let in tries again after a second."""
TCP_PROTOCOLS = (socket.IPPROTO_TCP, socket.IPPROTO_MPTCP)


class CannotListen(Exception):
    """The address is taken or is not ours, or the socket is of another kind; the text is for
    people."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises CannotListen.

    It listens at once: health is answered before any model is loaded.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)  # asyncio asks it for TCP_NODELAY
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error}") from None
    listener.setblocking(False)
    return listener


def adopt(descriptor: int) -> socket.socket:
    """Return the socket of an inherited descriptor, which processes that are started later do not
    have. Raises CannotListen, whose text has the socket as its subject, for one that no server can
    listen on; the descriptor stays open then."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise CannotListen(f"is none: descriptor {descriptor} is something else")
        listener = socket.socket(fileno=os.dup(descriptor))
    except OSError as error:
        raise CannotListen(f"cannot be used: descriptor {descriptor}: {error.strerror}") from None
    fault = _fault_of(listener)
    if fault is not None:
        listener.close()
        raise CannotListen(fault)
    os.close(descriptor)
    listener.setblocking(False)
    return listener


def _fault_of(listener: socket.socket) -> str | None:
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return "has no address with a port: give the socket unit a ListenStream= with one"
    if listener.type != socket.SOCK_STREAM or listener.proto not in TCP_PROTOCOLS:
        return "is not of TCP: give the socket unit a ListenStream="
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen: give the socket unit Accept=no"
    return None


def local_url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL for a client on this machine, also where the socket listens on all
    addresses."""
    host, port = listener.getsockname()[:2]
    return _url(scheme, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of the address that the socket is bound to."""
    host, port = listener.getsockname()[:2]
    return _url(scheme, host, port)


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
