"""The speed of FlashInfer's attention beside that of Triton's kernels, one layer at a time, where
it is installed. A rehearsal has a stand-in of its API."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from tests.models.attention.flashinfer_stand_in import Machine, installed

from bench.cpu_attention import Shape
from bench.gpu.check import Finding, Place
from bench.gpu.speed.attention import CASES
from bench.gpu.speed.attention_case import AttentionCase, build_calls, build_layers_for, build_store
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.floor import judge
from bench.gpu.speed.timing import time_captured
from quire.models.attention.backend import Site
from quire.models.attention.choice import attention_name, build_attention, registered
from quire.models.config import AttentionBackendName, KVCacheDtype
from quire.models.kv.kv_codec import choose_codec

BOTH = (AttentionBackendName.TRITON, AttentionBackendName.FLASHINFER)
TINY = Shape(2, 1, 64)
REHEARSED = (AttentionCase("decode 2 x 8, and 4 after 8", ((8, 1), (8, 1), (12, 4)), shape=TINY),)


@torch.inference_mode()
def check_flashinfer(place: Place) -> Iterator[Finding]:
    """Time the cases of `attention` whose K and V are as the model has them, both ways."""
    rates = ceilings(place).rates
    with installed(Machine()) if place.is_rehearsal else nullcontext():
        for case in REHEARSED if place.is_rehearsal else CASES:
            if case.kept_as.is_quantised:
                continue
            layers = build_layers_for(case, place.device)
            codec = choose_codec(KVCacheDtype.AUTO, case.shape.dtype)
            site = Site(place.device, codec, case.shape.width, case.shape.width, layers=layers)
            why = registered(BOTH[1]).refusal(site)
            if why is not None:
                yield Finding("flashinfer", {"not_run": why})
                return
            store = build_store(case, layers, place.device)
            for name in BOTH:
                backend = build_attention(store, name)
                calls = build_calls(case, backend, layers, place.device)
                timing = time_captured(place.device, calls)
                computed_by = attention_name(name, site)
                yield judge(
                    f"{case.name}, {name}",
                    timing,
                    case.work,
                    rates,
                    num_layers=len(layers),
                    computed_by=computed_by,
                )
