"""Decides which pages in a browser may call this server.

A page of another site can make the browser send requests to any address the user reaches. Where a
key is asked for it has none. Where none is asked for, the `Origin` that browsers send with such
requests tells them apart; and a page that had its own name point here (DNS rebinding), whose origin
is then that of the server, is told by that name in `Host`.
"""

from urllib.parse import urlsplit

from starlette.types import Scope

from quire.server.config import ServerConfig
from quire.server.errors import FORBIDDEN, RequestError
from quire.server.http.host_names import host_name, is_loopback

ANY = "*"
PROBE_PATHS = frozenset(("/health", "/livez", "/ping", "/readyz", "/startupz"))
"""Paths answered under any `Host`: probes come through meshes and tunnels and learn next to
nothing."""
SAFE_METHODS = ("GET", "HEAD")
MAX_SHOWN_CHARS = 128


class WebAccess:
    """The rules of one server. They apply where it asks for no key, and each where its option is
    given."""

    def __init__(self, config: ServerConfig) -> None:
        is_open = not config.api_keys
        self._origins = frozenset(config.allowed_origins)
        self._hosts = frozenset(map(host_name, config.allowed_hosts))
        on_loopback = is_loopback(host_name(config.host))
        self._checks_origin = (is_open or bool(self._origins)) and ANY not in self._origins
        self._checks_host = bool(self._hosts) or (is_open and on_loopback)
        self._checks_host &= ANY not in self._hosts

    def refusal(self, scope: Scope, *, is_open_path: bool) -> RequestError | None:
        """Return why this request is not answered, None if it is.

        Open paths change nothing and let no other site read what they say, so that any `Origin` may
        ask for them.
        """
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self._checks_host and scope["path"] not in PROBE_PATHS and not self._is_ours(host):
            return RequestError(
                f"The Host {host[:MAX_SHOWN_CHARS]!r} is not one of this server's. If it should "
                "be, start it with --allowed-hosts NAME (or QUIRE_ALLOWED_HOSTS).",
                code="host_not_allowed",
                status=FORBIDDEN,
            )
        if self._checks_origin and not is_open_path:
            return self._origin_refusal(scope["method"], host, headers)
        return None

    def _is_ours(self, host: str) -> bool:
        """Return whether a `Host` is this server's. Old probes send none, browsers always do."""
        name = host_name(host)
        return not name or is_loopback(name) or name in self._hosts

    def _origin_refusal(
        self, method: str, host: str, headers: dict[bytes, str]
    ) -> RequestError | None:
        site = headers.get(b"sec-fetch-site", "none").lower()
        origin = headers.get(b"origin")
        if site == "same-origin" or origin in self._origins:
            return None
        if origin is None and (site == "none" or method in SAFE_METHODS):
            return None
        if origin is not None and _is_origin_of(origin, host):
            return None
        shown = "of another site" if origin is None else repr(origin[:MAX_SHOWN_CHARS])
        return RequestError(
            f"The origin {shown} is not allowed: pages of other sites may not call a server "
            "without keys. If this one should, start it with --allowed-origins ORIGIN (or "
            "QUIRE_ALLOWED_ORIGINS).",
            code="origin_not_allowed",
            status=FORBIDDEN,
        )


def _is_origin_of(origin: str, host: str) -> bool:
    """Return whether a page of this origin came from this `Host`. Where TLS ends before the server,
    the schemes differ; a port that the scheme implies may be left out."""
    try:
        parts, ours = urlsplit(origin), urlsplit(f"//{host}")
        default = {"http": 80, "https": 443}.get(parts.scheme)
        if default is None or not parts.hostname or parts.path or parts.query or parts.fragment:
            return False
        return (parts.hostname, parts.port or default) == (ours.hostname, ours.port or default)
    except ValueError:
        return False
