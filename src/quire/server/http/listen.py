"""Binds the listening socket before anything heavy is imported: a client that connects early is
kept waiting by the kernel, not refused.
"""

import socket

BACKLOG = 65535
"""So many connections may wait as the kernel allows (Linux: `net.core.somaxconn`). A client that is
not let in tries again after a second."""


class CannotListen(Exception):
    """The address is taken or is not ours; the text is for people."""


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
