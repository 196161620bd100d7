"""Which attention backend a store gets: the fastest that runs here, or the one asked for."""

import logging

from quire.models.attention import cpu
from quire.models.attention.backend import AttentionBackend
from quire.models.attention.cpu import CPUAttention
from quire.models.attention.reference import ReferenceAttention
from quire.models.attention.triton import support
from quire.models.attention.triton.support import Site
from quire.models.attention.triton.tiles import Device
from quire.models.kv.kv_codec import Codec
from quire.models.kv.kv_store import KVStore
from quire.models.native import Library, library

logger = logging.getLogger(__name__)


def cpu_library(asked: str, device_type: str, codec: Codec) -> Library | None:
    """That of the `cpu` backend, if it is the one to use. `asked`: one of ATTENTION_BACKENDS.
    Raises ValueError if `cpu` is asked for where it cannot be."""
    if asked not in ("auto", "cpu") or (asked == "auto" and device_type != "cpu"):
        return None
    kernels = library()
    why = cpu.why_not(kernels, device_type, codec)
    if why is not None and asked == "cpu":
        raise ValueError(f"--attention-backend cpu cannot be had: {why}")
    return None if why is not None else kernels


def triton_device(asked: str, site: Site) -> Device | None:
    """That of the `triton` backend, if it is the one to use. `asked`: one of ATTENTION_BACKENDS.
    Raises ValueError if `triton` is asked for where it cannot be."""
    if asked not in ("auto", "triton") or (asked == "auto" and site.device.type != "cuda"):
        return None
    why = support.why_not(site)
    if why is not None and asked == "triton":
        raise ValueError(f"--attention-backend triton cannot be had: {why}")
    return None if why is not None else support.describe(site.device)


def build_attention(store: KVStore, asked: str) -> AttentionBackend:
    site = _site(store)
    kernels = cpu_library(asked, site.device.type, site.codec)
    if kernels is not None:
        return CPUAttention(store, kernels)
    device = triton_device(asked, site)
    if device is not None:
        from quire.models.attention.triton.backend import TritonAttention

        return TritonAttention(store, device)
    return ReferenceAttention(store, is_eager=asked == "eager")


def attention_name(asked: str, site: Site) -> str:
    """For people: the backend, the instruction set if it has one, and on a GPU why not `triton`."""
    kernels = cpu_library(asked, site.device.type, site.codec)
    if kernels is not None:
        return f"cpu ({kernels.isa})"
    if triton_device(asked, site) is not None:
        return "triton"
    if asked == "auto" and site.device.type == "cuda":
        return f"reference (not triton: {support.why_not(site)})"
    return "eager" if asked == "eager" else "reference"


def _site(store: KVStore) -> Site:
    keys = [each.elements for each in store.keys]
    values = [each.elements for each in store.values if each is not None]
    widths = [max((each.shape[-1] for each in some), default=0) for some in (keys, values)]
    return Site(keys[0].device, store.codec, *widths)
