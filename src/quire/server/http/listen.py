"""The listening socket, bound before anything heavy is imported: who connects early is kept waiting
by the kernel, not refused.
"""

import socket

BACKLOG = 65535
"""As long as the kernel lets it be (Linux: `net.core.somaxconn`). Whoever finds no place in it
tries again after a second."""


class CannotListen(Exception):
    """The address is taken or is not ours; the text is for people."""


def bind(host: str, port: int) -> socket.socket:
    """Listens at once: health is answered before any model is loaded."""
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


def local_url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds it, if it listens on all addresses too."""
    host, port = listener.getsockname()[:2]
    return _url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return _url(host, port)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
