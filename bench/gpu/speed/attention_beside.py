"""The speed of attention that others have written beside that of Triton's kernels, one layer at a
time: FlashInfer's, and PyTorch's flash attention for prompts without earlier context, where they
can be had. A rehearsal has stand-ins of both.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import torch
from tests.models.attention.flashinfer_stand_in import Machine, installed
from tests.models.attention.varlen_stand_in import varlen_installed

from bench.cpu_attention import Shape
from bench.gpu.check import Finding, Place
from bench.gpu.speed.attention import CASES
from bench.gpu.speed.attention_case import AttentionCase, build_calls, build_layers_for, build_store
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.floor import judge
from bench.gpu.speed.timing import time_captured
from quire.models.attention.backend import AttentionBackend, Site
from quire.models.attention.choice import attention_name, build_attention, registered
from quire.models.attention.triton.backend import TritonAttention
from quire.models.attention.triton.fresh import why_not_fresh
from quire.models.attention.triton.support import describe
from quire.models.config import AttentionBackendName, KVCacheDtype, LayerFacts
from quire.models.kv.kv_codec import choose_codec

TRITON, FLASHINFER = AttentionBackendName.TRITON, AttentionBackendName.FLASHINFER
TINY = Shape(2, 1, 64)
REHEARSED = (
    AttentionCase("decode 2 x 8, and 4 after 8", ((8, 1), (8, 1), (12, 4)), shape=TINY),
    AttentionCase("prefill 12", ((12, 12),), shape=TINY),
)


@torch.inference_mode()
def check_beside(place: Place) -> Iterator[Finding]:
    """Time the cases of `attention` whose K and V are as the model has them, each way."""
    rates = ceilings(place).rates
    with ExitStack() as stack:
        if place.is_rehearsal:
            stack.enter_context(installed(Machine()))
            stack.enter_context(varlen_installed())
        for case in REHEARSED if place.is_rehearsal else CASES:
            if case.kept_as.is_quantised:
                continue
            layers = build_layers_for(case, place.device)
            for name, backend in _backends(case, layers, place):
                calls = build_calls(case, backend, layers, place.device)
                timing = time_captured(place.device, calls)
                more = {"num_layers": len(layers)}
                yield judge(f"{case.name}, {name}", timing, case.work, rates, **more)
        yield Finding("what cannot be had", _missing(place))


def _backends(
    case: AttentionCase, layers: tuple[LayerFacts, ...], place: Place
) -> Iterator[tuple[str, AttentionBackend]]:
    """Yield the backends of a case over one store, by their names in logs."""
    store, site = build_store(case, layers, place.device), _site(case.shape, layers, place)
    yield str(TRITON), build_attention(store, TRITON)
    if registered(FLASHINFER).refusal(site) is None:
        yield attention_name(FLASHINFER, site), build_attention(store, FLASHINFER)
    if why_not_fresh() is None and all(length == new for length, new in case.chunks):
        yield "varlen_attn", TritonAttention(store, describe(place.device), uses_flash=True)


def _missing(place: Place) -> dict[str, str | None]:
    site = _site(TINY, (), place)
    return {"flashinfer": registered(FLASHINFER).refusal(site), "varlen_attn": why_not_fresh()}


def _site(shape: Shape, layers: tuple[LayerFacts, ...], place: Place) -> Site:
    codec = choose_codec(KVCacheDtype.AUTO, shape.dtype)
    return Site(place.device, codec, shape.width, shape.width, layers=layers)
