"""The entry of FlashInfer in the registry. `auto` does not try it: no GPU has accepted it yet."""

from collections.abc import Sequence
from functools import cache

import torch

from quire.models.attention.backend import AttentionBackend, RegisteredBackend, Site
from quire.models.attention.flashinfer.api import load
from quire.models.attention.flashinfer.scratch import kept_bytes
from quire.models.attention.flashinfer.support import log_name, why_not, why_not_taken
from quire.models.attention.flashinfer.wrappers import WORKSPACE_BYTES, Target
from quire.models.attention.scratch import StepLimits
from quire.models.attention.triton.scratch import triton_scratch_bytes
from quire.models.attention.triton.support import describe
from quire.models.config import LayerFacts, LayerFeature
from quire.models.kv.kv_store import KVStore


def _build(store: KVStore, site: Site) -> AttentionBackend:
    from quire.models.attention.flashinfer.backend import FlashInferAttention
    from quire.models.attention.flashinfer.plans import Planner
    from quire.models.attention.triton.backend import TritonAttention

    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=site.device)
    target = Target(load(), site.codec.dtype, store.block_size, workspace)
    takes = cache(lambda layer: why_not_taken(layer, site) is None)
    return FlashInferAttention(
        TritonAttention(store, describe(site.device)), Planner(target), takes
    )


def _scratch_bytes(layers: Sequence[LayerFacts], limits: StepLimits, site: Site) -> int:
    own = triton_scratch_bytes(layers, limits, site.codec, describe(site.device))
    return own + kept_bytes(layers)


FLASHINFER = RegisteredBackend(
    features=frozenset(LayerFeature),
    why_not=why_not,
    build=_build,
    scratch_bytes=_scratch_bytes,
    log_name=log_name,
    is_automatic=lambda device_type: False,
)
