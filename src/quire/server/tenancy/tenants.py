"""Tenants and their keys. An API key is a tenant, and two tenants never share a block, because the
salt of a block's hash is made from the key and a secret that no client knows.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.requests import Request

from quire.server.config import ApiKey
from quire.server.observability.request_log import RequestFigures
from quire.server.observability.trace_context import TraceContext

ARRIVAL = "quire.arrival"
"""The key under which the ASGI scope of a request holds its `Arrival`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever shares an API key, and so blocks and a queue; `is_named` says that the name was
    chosen by the operator, not made from the key."""

    name: str = ""
    weight: float = 1.0
    own_salt: bytes = field(default=b"", repr=False)
    is_named: bool = False

    def salt(self, cache_salt: str | None) -> bytes:
        """Return the salt of the tenant's blocks with what the client adds, `cache_salt`. The
        length of that keeps the two parts apart."""
        added = (cache_salt or "").encode()
        if not self.own_salt or not added:
            return self.own_salt or added
        return self.own_salt + len(added).to_bytes(4, "big") + added


EVERYONE = Tenant()


class Arrival(NamedTuple):
    """A request of which the body has not been read yet; `arrived_s` is in seconds of the server's
    clock. `trace` is its place in a trace, if it has one; `figures` take what its line in the log
    tells, if it gets one."""

    tenant: Tenant
    request_id: str
    arrived_s: float
    trace: TraceContext | None = None
    figures: RequestFigures | None = None


def arrival_of(request: Request) -> Arrival:
    """Return what the middleware has noted of a request."""
    arrival = request.scope[ARRIVAL]
    assert isinstance(arrival, Arrival)
    return arrival


class Tenants:
    """The tenants of a server. Keys are kept as digests, and compared in a time that does not
    depend on them."""

    def __init__(self, by_digest: Sequence[tuple[bytes, Tenant]]) -> None:
        self._by_digest = by_digest

    @property
    def are_apart(self) -> bool:
        """False where no keys are asked for: everyone is one tenant."""
        return bool(self._by_digest)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the operator chose."""
        return tuple(tenant.name for _, tenant in self._by_digest if tenant.is_named)

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of this name; None for a key that is no longer one of the server."""
        if not self._by_digest:
            return EVERYONE if name == EVERYONE.name else None
        return next((tenant for _, tenant in self._by_digest if tenant.name == name), None)

    def authenticate(self, headers: Sequence[tuple[bytes, bytes]]) -> Tenant | None:
        """Return the tenant whose key the headers hold; None for a missing or wrong key."""
        if not self._by_digest:
            return EVERYONE
        given = _digest(_key_in(headers))
        found = None
        for digest, tenant in self._by_digest:
            if hmac.compare_digest(given, digest):
                found = tenant
        return found


def build_tenants(keys: Sequence[ApiKey], secret: bytes) -> Tenants:
    """Return the tenants of these keys, with salts made from each key and `secret`."""
    return Tenants([(_digest(each.key.encode()), _tenant(each, secret)) for each in keys])


def _tenant(key: ApiKey, secret: bytes) -> Tenant:
    raw = key.key.encode()
    name = key.name or "key-" + hashlib.sha256(b"tenant of " + raw).hexdigest()[:12]
    salt = hmac.digest(secret, raw, "sha256")
    return Tenant(name, key.weight, salt, is_named=key.name is not None)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key_in(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
        if name == b"x-api-key":
            return value
    return b""
