"""Chooses the attention backend of a KV store: the requested one, or the fastest that runs here."""

from collections.abc import Iterator, Sequence
from pkgutil import resolve_name
from typing import NamedTuple

from quire.models.attention.backend import AttentionBackend, AttentionSetup, RegisteredBackend
from quire.models.attention.scratch import StepLimits
from quire.models.attention.triton.scratch import triton_scratch_bytes
from quire.models.attention.triton.support import why_not_sizes
from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.config import AttentionBackendName, LayerFacts, LayerFeature
from quire.models.kv.kv_store import KVStore
from quire.models.optimizations import Disabled

OF_TRITON = frozenset({AttentionBackendName.AUTO, AttentionBackendName.TRITON})
"""Names that lead to Triton's kernels on a GPU."""


def registered(name: AttentionBackendName) -> RegisteredBackend:
    """Import and return the backend of that name, which must not be AUTO."""
    found: object = resolve_name(name.implementation)
    assert isinstance(found, RegisteredBackend), f"{name.implementation} is no attention backend"
    return found


def choose_attention(requested: AttentionBackendName, site: AttentionSetup) -> RegisteredBackend:
    """Return the backend to use at a site. Raises ValueError if the requested one cannot run."""
    if requested is AttentionBackendName.AUTO:
        return next(backend for _, backend, why in _tried(site) if why is None)
    backend = registered(requested)
    why = backend.refusal(site)
    if why is not None:
        raise ValueError(f"--attention-backend {requested} cannot be had: {why}")
    return backend


def build_attention(
    store: KVStore,
    requested: AttentionBackendName,
    disabled: Disabled = (),
    features: frozenset[LayerFeature] = frozenset(),
) -> AttentionBackend:
    """Build the backend over `store`, for layers that need `features`. Raises ValueError if the
    requested one cannot run."""
    site = _site(store)._replace(disabled=disabled, features=features)
    return choose_attention(requested, site).build(store, site)


def attention_name(requested: AttentionBackendName, site: AttentionSetup) -> str:
    """Return the backend's name for logs, with what `auto` misses. Raises ValueError if the
    requested one cannot run."""
    name = choose_attention(requested, site).log_name(site)
    if requested is not AttentionBackendName.AUTO:
        return name
    missed = [
        f"not {other}: {why}"
        for other, backend, why in _tried(site)
        if why is not None and (backend.is_missed or backend.missing(site))
    ]
    return f"{name} ({', '.join(missed)})" if missed else name


class PlannedAttention(NamedTuple):
    """The backend of layers on a GPU that is not here, and what it allocates in a step."""

    name: str
    scratch_bytes: int


def plan_attention(
    requested: AttentionBackendName,
    site: AttentionSetup,
    gpu: DeviceProperties,
    layers: Sequence[LayerFacts],
    limits: StepLimits,
) -> PlannedAttention:
    """Return the backend that a GPU of that description would have. Raises ValueError if the
    requested one could not run there."""
    name, why = requested, None
    if requested in OF_TRITON:
        why = why_not_sizes(site.codec, site.head_size, site.v_head_size)
        if why is None:
            scratch = triton_scratch_bytes(layers, limits, site.codec, gpu)
            return PlannedAttention(AttentionBackendName.TRITON, scratch)
    if requested is AttentionBackendName.AUTO:
        name = AttentionBackendName.REFERENCE
    backend = registered(name)
    refusal = backend.refusal(site) if why is None or name is not requested else why
    if refusal is not None:
        raise ValueError(f"--attention-backend {name} cannot be had: {refusal}")
    shown = str(name) if why is None else f"{name} (not triton: {why})"
    return PlannedAttention(shown, backend.scratch_bytes(layers, limits, site))


def _tried(
    site: AttentionSetup,
) -> Iterator[tuple[AttentionBackendName, RegisteredBackend, str | None]]:
    """Yield what `auto` tries, with why each cannot run; the first that can is the last."""
    for name in AttentionBackendName:
        if name is AttentionBackendName.AUTO:
            continue
        backend = registered(name)
        if backend.is_automatic(site.device.type):
            why = backend.refusal(site)
            yield name, backend, why
            if why is None:
                return


def _site(store: KVStore) -> AttentionSetup:
    keys = [each.elements for each in store.keys]
    values = [each.elements for each in store.values if each is not None]
    head_size, v_head_size = (
        max((each.shape[-1] for each in some), default=0) for some in (keys, values)
    )
    return AttentionSetup(keys[0].device, store.codec, head_size, v_head_size)
