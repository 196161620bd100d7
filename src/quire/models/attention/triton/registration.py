"""The entry of Triton's kernels in the registry; triton is imported only where they are used."""

from quire.models.attention.backend import AttentionBackend, AttentionSetup, RegisteredBackend
from quire.models.attention.triton.scratch import triton_scratch_bytes
from quire.models.attention.triton.support import describe, why_not
from quire.models.config import LayerFeature
from quire.models.kv.kv_store import KVStore


def _build(store: KVStore, site: AttentionSetup) -> AttentionBackend:
    from quire.models.attention.triton.backend import TritonAttention

    return TritonAttention(store, describe(site.device))


TRITON = RegisteredBackend(
    features=frozenset({LayerFeature.SOFTCAP, LayerFeature.SINKS, LayerFeature.LATENT}),
    why_not=why_not,
    build=_build,
    scratch_bytes=lambda layers, limits, site: triton_scratch_bytes(
        layers, limits, site.codec, describe(site.device)
    ),
    log_name=lambda site: "triton",
    is_automatic=lambda device_type: device_type == "cuda",
    is_missed=True,
)
