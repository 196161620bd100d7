"""Addresses of engines that offer blocks, and their secret."""

from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

MIN_SECRET_BYTES = 16
"""A shorter secret could be guessed from one connection that was listened to."""


class Address(NamedTuple):
    """A host, by its name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine is reached by it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(given: str) -> Address:
    """Return the address in `HOST:PORT`, or `[HOST]:PORT` for IPv6. Raises ValueError."""
    host, colon, port = given.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"expected HOST:PORT, or [HOST]:PORT for IPv6, got {given!r}")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"expected HOST:PORT, as in 127.0.0.1:7100, got {given!r}")
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"the port of {given!r} must be 1 to 65535")
    return Address(host, int(port))


def read_secret(path: Path) -> bytes:
    """Return the secret in a file, without the white space around it. Raises OSError, and
    ValueError where it is short."""
    secret = path.read_bytes().strip()
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"the secret in {path} has {len(secret)} bytes, must have {MIN_SECRET_BYTES} or more, "
            "as from `openssl rand -hex 32`"
        )
    return secret
