"""Which attention backend a store gets: the fastest that runs here, or the one asked for."""

import logging

from quire.models.attention.backend import AttentionBackend
from quire.models.attention.cpu import CPUAttention, why_not
from quire.models.attention.reference import ReferenceAttention
from quire.models.kv_codec import Codec
from quire.models.kv_store import KVStore
from quire.models.native import Library, library

logger = logging.getLogger(__name__)


def cpu_library(asked: str, device_type: str, codec: Codec) -> Library | None:
    """That of the `cpu` backend, if it is the one to use. `asked`: one of ATTENTION_BACKENDS.
    Raises ValueError if `cpu` is asked for where it cannot be."""
    if asked not in ("auto", "cpu") or (asked == "auto" and device_type != "cpu"):
        return None
    kernels = library()
    why = why_not(kernels, device_type, codec)
    if why is not None and asked == "cpu":
        raise ValueError(f"--attention-backend cpu cannot be had: {why}")
    return None if why is not None else kernels


def build_attention(store: KVStore, asked: str, device_type: str) -> AttentionBackend:
    kernels = cpu_library(asked, device_type, store.codec)
    if kernels is not None:
        return CPUAttention(store, kernels)
    return ReferenceAttention(store, is_eager=asked == "eager")


def attention_name(asked: str, device_type: str, codec: Codec) -> str:
    """For people: the backend, and the instruction set if it has one."""
    kernels = cpu_library(asked, device_type, codec)
    if kernels is not None:
        return f"cpu ({kernels.isa})"
    return "eager" if asked == "eager" else "reference"
