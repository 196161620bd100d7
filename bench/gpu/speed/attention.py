"""The speed of the attention kernels, one layer at a time, beside what reading K and V once and the
products of what is seen would take."""

from collections.abc import Iterator

import torch

from bench.cpu_attention import Shape
from bench.gpu.check import Finding, Place
from bench.gpu.speed.attention_case import AttentionCase, build_calls, build_layers_for, build_store
from bench.gpu.speed.ceilings import ceilings
from bench.gpu.speed.floor import judge
from bench.gpu.speed.timing import time_captured
from quire.models.attention.choice import build_attention
from quire.models.config import AttentionBackendName, KVCacheDtype

TINY = Shape(2, 1, 16)
FP8 = KVCacheDtype.FP8_E4M3
CASES = (
    AttentionCase("decode 64 x 4k", ((4096, 1),) * 64),
    AttentionCase("decode 8 x 32k", ((32768, 1),) * 8),
    AttentionCase("decode 31 x 512 and 1 x 32k", (*((512, 1),) * 31, (32768, 1))),
    AttentionCase("ragged, decode 64 x 512 and 1 x 32k", (*((512, 1),) * 64, (32768, 1))),
    AttentionCase("ragged, decode 64 x 512 and 1 x 32k, fp8", (*((512, 1),) * 64, (32768, 1)), FP8),
    AttentionCase("prefill 8k", ((8192, 8192),)),
    AttentionCase("prefill 2k", ((2048, 2048),)),
    AttentionCase("decode 32 x 4k, and 2k after 2k", (*((4096, 1),) * 32, (4096, 2048))),
    AttentionCase("decode 64 x 4k, fp8", ((4096, 1),) * 64, FP8),
    AttentionCase("decode 8 x 32k, fp8", ((32768, 1),) * 8, FP8),
    AttentionCase("decode 1 x 4k", ((4096, 1),)),
    AttentionCase("prefill 2k, fp8", ((2048, 2048),), FP8),
)
REHEARSED = (
    AttentionCase("ragged, decode 2 x 8 and 1 x 300", (*((8, 1),) * 2, (300, 1)), shape=TINY),
    AttentionCase("prefill 20 after 12, fp8", ((32, 20), (9, 1)), FP8, TINY),
)


@torch.inference_mode()
def check_attention(place: Place) -> Iterator[Finding]:
    """Time every case. A floor counts the bytes of all contexts together, as if they were spread
    evenly over the device, as they are shared: `ragged` should come near to equal ones."""
    rates = ceilings(place).rates
    for case in REHEARSED if place.is_rehearsal else CASES:
        layers = build_layers_for(case, place.device)
        store = build_store(case, layers, place.device)
        backend = build_attention(store, AttentionBackendName.TRITON)
        timing = time_captured(place.device, build_calls(case, backend, layers, place.device))
        yield judge(case.name, timing, case.work, rates, num_layers=len(layers))
