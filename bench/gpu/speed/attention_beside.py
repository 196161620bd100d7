"""The speed of PyTorch's flash attention for prompts without earlier context, where it can be had,
beside that of Triton's kernels, one layer at a time. A rehearsal has a stand-in.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from tests.models.attention.varlen_stand_in import varlen_installed

from bench.cpu_attention import Shape
from bench.gpu.check import Finding, Place
from bench.gpu.speed.attention import CASES
from bench.gpu.speed.attention_case import AttentionCase, build_calls, build_layers_for, build_store
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.floor import judge
from bench.gpu.speed.timing import time_captured
from quire.models.attention.backend import AttentionBackend
from quire.models.attention.choice import build_attention
from quire.models.attention.triton.backend import TritonAttention
from quire.models.attention.triton.fresh import why_not_fresh
from quire.models.attention.triton.support import describe
from quire.models.config import AttentionBackendName, LayerFacts

TRITON = AttentionBackendName.TRITON
TINY = Shape(2, 1, 64)
REHEARSED = (
    AttentionCase("decode 2 x 8, and 4 after 8", ((8, 1), (8, 1), (12, 4)), shape=TINY),
    AttentionCase("prefill 12", ((12, 12),), shape=TINY),
)


@torch.inference_mode()
def check_beside(place: Place) -> Iterator[Finding]:
    """Time the cases of `attention` whose K and V are as the model has them, each way."""
    rates = ceilings(place).rates
    with varlen_installed() if place.is_rehearsal else nullcontext():
        for case in REHEARSED if place.is_rehearsal else CASES:
            if case.kept_as.is_quantised:
                continue
            layers = build_layers_for(case, place.device)
            for name, backend in _backends(case, layers, place):
                calls = build_calls(case, backend, layers, place.device)
                timing = time_captured(place.device, calls)
                more = {"num_layers": len(layers)}
                yield judge(f"{case.name}, {name}", timing, case.work, rates, **more)
        yield Finding("what cannot be had", {"varlen_attn": why_not_fresh()})


def _backends(
    case: AttentionCase, layers: tuple[LayerFacts, ...], place: Place
) -> Iterator[tuple[str, AttentionBackend]]:
    """Yield the backends of a case over one store, by their names."""
    store = build_store(case, layers, place.device)
    yield str(TRITON), build_attention(store, TRITON)
    if why_not_fresh() is None and all(length == new for length, new in case.chunks):
        yield "varlen_attn", TritonAttention(store, describe(place.device), uses_flash=True)
