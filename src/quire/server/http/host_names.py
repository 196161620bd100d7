"""Names of hosts: which mean the machine itself, and whether others can reach a server."""

import re
from ipaddress import IPv6Address, ip_address

from quire.server.config import ServerConfig

_BRACKETED = re.compile(r"\[([^\]]*)\](:[0-9]*)?")
_PORT = re.compile(r":[0-9]*$")


def host_name(host: str) -> str:
    """Return the name in a `Host` header or an option: in lower case, without port, brackets and
    final dot."""
    host = host.strip().lower()
    bracketed = _BRACKETED.fullmatch(host)
    if bracketed is not None:
        return bracketed[1]
    is_address = host.count(":") > 1  # of IPv6, as options have it
    return host if is_address else _PORT.sub("", host).rstrip(".")


def is_loopback(name: str) -> bool:
    """Return whether this name, as `host_name` gives it, always means the machine itself."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def exposure_warning(config: ServerConfig) -> str | None:
    """Return a sentence for the log if more than this machine can reach the server without a
    key."""
    if config.api_keys or is_loopback(host_name(config.host)):
        return None
    pages = "" if config.allowed_hosts else ", and so may web pages that give it a name of theirs"
    return (
        f"listens on {config.host} without API keys: whoever reaches it may use it{pages}. "
        "Set --api-key-file, or --allowed-hosts, or listen on 127.0.0.1"
    )
