"""Tenants and their keys. An API key is a tenant, and two tenants never share a block, because the
salt of a block's hash is made from the key and a secret that no client knows.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from starlette.requests import Request

from quire.server.config import ApiKey, ServerConfig
from quire.server.errors import FORBIDDEN, RequestError
from quire.server.http.trace_context import TraceContext
from quire.server.tenancy.latency_targets import NO_TARGETS, LatencyTargets
from quire.server.tenancy.rates import KeyRates, build_rates
from quire.server.tenancy.request_log import RequestFigures

ARRIVAL = "quire.arrival"
"""The key under which the ASGI scope of a request holds its `IncomingRequest`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever shares an API key, and so blocks and a queue; `is_named` says that the name was
    chosen by the operator, not made from the key, and `is_admin` that the key was the admin's.
    `rates` are the account of its limits, where it has any, and `targets` its own."""

    name: str = ""
    weight: float = 1.0
    own_salt: bytes = field(default=b"", repr=False)
    is_named: bool = False
    is_admin: bool = False
    rates: KeyRates | None = field(default=None, repr=False, compare=False)
    targets: LatencyTargets = NO_TARGETS

    def salt(self, cache_salt: str | None) -> bytes:
        """Return the salt of the tenant's blocks with what the client adds, `cache_salt`. The
        length of that keeps the two parts apart."""
        added = (cache_salt or "").encode()
        if not self.own_salt or not added:
            return self.own_salt or added
        return self.own_salt + len(added).to_bytes(4, "big") + added


EVERYONE = Tenant()
ADMIN_NAME = "(admin)"
"""The name of who has the admin key, where there are API keys: no key of a file can have it."""


class IncomingRequest(NamedTuple):
    """A request of which the body has not been read yet; `arrived_s` is in seconds of the server's
    clock. `trace` is its place in a trace, if it has one; `figures` take what its line in the log
    tells, if it gets one. `in_batch` says that it is a line of a batch, for which nobody
    connects."""

    tenant: Tenant
    request_id: str
    arrived_s: float
    trace: TraceContext | None = None
    figures: RequestFigures | None = None
    in_batch: bool = False


def arrival_of(request: Request) -> IncomingRequest:
    """Return what the middleware has noted of a request."""
    arrival = request.scope[ARRIVAL]
    assert isinstance(arrival, IncomingRequest)
    return arrival


class AdminKeyRequired(RequestError):
    """The request is for the administrator, and brings another key or none."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="admin_key_required", status=FORBIDDEN)


class Tenants:
    """The tenants of a server. Keys are kept as digests, and compared in a time that does not
    depend on them. `admin` is who has the admin key, with its digest, where there is one."""

    def __init__(
        self,
        by_digest: Sequence[tuple[bytes, Tenant]],
        admin: tuple[bytes, Tenant] | None = None,
    ) -> None:
        self._tenants = tuple(tenant for _, tenant in by_digest)
        self._by_digest = (*by_digest, *(() if admin is None else (admin,)))
        self._has_admin = admin is not None

    @property
    def are_apart(self) -> bool:
        """False where no keys are asked for: everyone is one tenant."""
        return bool(self._tenants)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the operator chose."""
        return tuple(tenant.name for tenant in self._tenants if tenant.is_named)

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all whose requests there may be."""
        if not self._tenants:
            return (EVERYONE.name,)
        return tuple(tenant.name for _, tenant in self._by_digest)

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of this name; None for a key that is no longer one of the server."""
        if not self._tenants:
            return EVERYONE if name == EVERYONE.name else None
        return next((tenant for _, tenant in self._by_digest if tenant.name == name), None)

    def authenticate(self, headers: Sequence[tuple[bytes, bytes]]) -> Tenant | None:
        """Return the tenant whose key the headers hold; None for a missing or wrong key."""
        found = None if self._tenants else EVERYONE
        if not self._by_digest:
            return found
        given = _digest(_key_in(headers))
        for digest, tenant in self._by_digest:
            if hmac.compare_digest(given, digest):
                found = tenant
        return found

    def check_admin(self, tenant: Tenant) -> None:
        """Raise AdminKeyRequired where there is an admin key and the tenant has not brought it."""
        if self._has_admin and not tenant.is_admin:
            raise AdminKeyRequired("This route wants the admin key of this server (--admin-key).")

    def check_sees_all(self, tenant: Tenant) -> None:
        """Raise AdminKeyRequired for a tenant that has no right to the requests of others."""
        if self.are_apart and not tenant.is_admin:
            raise AdminKeyRequired(
                "The requests of all keys are shown to the admin key of a server (--admin-key) "
                "alone; without 'all' your own are listed."
            )


def build_tenants(keys: Sequence[ApiKey], secret: bytes, admin_key: str | None = None) -> Tenants:
    """Return the tenants of these keys, with salts made from each key and `secret`. Without keys
    the administrator is everyone too, as far as blocks and requests go."""
    admin = None
    if admin_key is not None:
        tenant = _tenant(ApiKey(admin_key, ADMIN_NAME), secret) if keys else EVERYONE
        admin = _digest(admin_key.encode()), replace(tenant, is_named=False, is_admin=True)
    return Tenants([(_digest(each.key.encode()), _tenant(each, secret)) for each in keys], admin)


def lost_blocks_warning(config: ServerConfig) -> str | None:
    """Return a sentence for the log if blocks are kept on disk that no key finds after a start."""
    is_kept = any(each.engine.memory.prefix_cache_dir is not None for each in config.models)
    if not (is_kept and config.api_keys) or config.tenant_secret is not None:
        return None
    return (
        "--prefix-cache-dir keeps blocks whose salts are random at each start: no API key finds "
        "its blocks of an earlier start, nor those of another server. Set --tenant-secret"
    )


def _tenant(key: ApiKey, secret: bytes) -> Tenant:
    raw = key.key.encode()
    name = key.name or "key-" + hashlib.sha256(b"tenant of " + raw).hexdigest()[:12]
    salt = hmac.digest(secret, raw, "sha256")
    rates = build_rates(key.requests_per_minute, key.tokens_per_minute)
    targets = LatencyTargets(key.target_ttft_ms, key.target_itl_ms)
    is_named = key.name is not None
    return Tenant(name, key.weight, salt, is_named=is_named, rates=rates, targets=targets)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key_in(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the key that the headers hold; none where two headers hold different ones, since it is
    not known then whose request it is."""
    keys: set[bytes] = set()
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.add(value[7:].strip())
        if name == b"x-api-key":
            keys.add(value)
    keys.discard(b"")
    return keys.pop() if len(keys) == 1 else b""
