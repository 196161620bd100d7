"""Chooses the attention backend of a KV store: the requested one, or the fastest that runs here."""

import logging

from quire.models.attention import cpu
from quire.models.attention.backend import AttentionBackend
from quire.models.attention.cpu import CPUAttention
from quire.models.attention.reference import ReferenceAttention
from quire.models.attention.triton import support
from quire.models.attention.triton.support import Site
from quire.models.attention.triton.tiles import Device
from quire.models.config import AttentionBackendName
from quire.models.kv.kv_store import KVStore
from quire.models.native import Library, library
from quire.models.optimizations import Disabled

logger = logging.getLogger(__name__)


def cpu_library(
    requested: AttentionBackendName, site: Site, disabled: Disabled = ()
) -> Library | None:
    """Return the library of the `cpu` backend if that is the one to use, else None. Raises
    ValueError if it is requested and cannot run."""
    is_auto = requested is AttentionBackendName.AUTO
    is_requested, device_type = requested is AttentionBackendName.CPU, site.device.type
    if not (is_requested or (is_auto and device_type == "cpu")):
        return None
    built = library()
    kernels = None if built is None else built.without(disabled)
    why = cpu.why_not(kernels, device_type, site.codec)
    if why is not None and is_requested:
        raise ValueError(f"--attention-backend cpu cannot be had: {why}")
    return None if why is not None else kernels


def triton_device(requested: AttentionBackendName, site: Site) -> Device | None:
    """Return the device of the `triton` backend if that is the one to use, else None. Raises
    ValueError if it is requested and cannot run."""
    is_auto = requested is AttentionBackendName.AUTO
    is_requested = requested is AttentionBackendName.TRITON
    if not (is_requested or (is_auto and site.device.type == "cuda")):
        return None
    why = support.why_not(site)
    if why is not None and is_requested:
        raise ValueError(f"--attention-backend triton cannot be had: {why}")
    return None if why is not None else support.describe(site.device)


def build_attention(
    store: KVStore, requested: AttentionBackendName, disabled: Disabled = ()
) -> AttentionBackend:
    """Build the backend over `store`. Raises ValueError if the requested one cannot run."""
    site = _site(store)
    kernels = cpu_library(requested, site, disabled)
    if kernels is not None:
        return CPUAttention(store, kernels)
    device = triton_device(requested, site)
    if device is not None:
        from quire.models.attention.triton.backend import TritonAttention

        return TritonAttention(store, device)
    return ReferenceAttention(store, is_eager=requested is AttentionBackendName.EAGER)


def attention_name(requested: AttentionBackendName, site: Site, disabled: Disabled = ()) -> str:
    """Return the backend's name for logs, with its instruction set, or why it is not `triton`."""
    kernels = cpu_library(requested, site, disabled)
    if kernels is not None:
        return f"cpu ({kernels.isa})"
    if triton_device(requested, site) is not None:
        return "triton"
    if requested is AttentionBackendName.AUTO and site.device.type == "cuda":
        return f"reference (not triton: {support.why_not(site)})"
    return "eager" if requested is AttentionBackendName.EAGER else "reference"


def _site(store: KVStore) -> Site:
    keys = [each.elements for each in store.keys]
    values = [each.elements for each in store.values if each is not None]
    sizes = [max((each.shape[-1] for each in some), default=0) for some in (keys, values)]
    return Site(keys[0].device, store.codec, *sizes)
