"""Attention kernels against float64, token by token, within what rounding explains.

Keys and values that no query may see are NaN, so are tensors before they are written, and entries
of block tables that none may read are rubbish: see `tests/models/attention/scene.py`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from tests.models.attention.scene import Scene, Shape, Span, UnroundedScene

from bench.gpu.check import Finding, Place
from quire.models.attention.choice import build_attention
from quire.models.attention.triton.support import why_not_sizes
from quire.models.config import AttentionBackendName, KVCacheDtype

PLAIN = Shape(num_heads=8, num_kv_heads=2, head_dim=64, v_head_size=64, index=1)
WIDTHS = {
    "64": PLAIN,
    "80": replace(PLAIN, head_dim=80, v_head_size=80),
    "128": replace(PLAIN, num_heads=32, num_kv_heads=8, head_dim=128, v_head_size=128),
    "192 and 128": replace(PLAIN, num_kv_heads=8, head_dim=192, v_head_size=128),
    "256": replace(PLAIN, head_dim=256, v_head_size=256),
    "576, latent": Shape(16, 1, 576, 512, is_latent=True),
}
VARIANTS: dict[str, dict[str, object]] = {
    "window": {"window_size": 100},
    "chunks": {"chunk_size": 128},
    "window, cap": {"window_size": 300, "softcap": 30.0},
    "window, sinks": {"window_size": 64, "has_sinks": True},
}
SPANS = {
    "decode": [Span(length, 1) for length in (0, 1, 700, 15, 16, 130, 3000)],
    "ragged": [*(Span(length, 1) for length in range(20)), Span(9000, 1), Span(255, 1)],
    "mixed": [Span(0, 130), Span(700, 1), Span(300, 17), Span(0, 1), Span(31, 33)],
    "later": [Span(1000, 40), Span(8000, 300)],
}
"""Contexts that are cut into parts, one that is far longer than all others, chunks of one token
beside longer ones, and chunks most of whose tiles of keys all of their tokens see."""
REHEARSED = ("64", "64, window, sinks")
REHEARSED_SPANS = {
    "mixed": [Span(0, 20), Span(90, 1), Span(0, 1)],
    "later": [Span(300, 10)],
    "ragged": [Span(0, 1), Span(600, 1), Span(15, 1)],
}


def check_bfloat16(place: Place) -> Iterator[Finding]:
    yield from _check(torch.bfloat16, KVCacheDtype.AUTO, place)


def check_float16(place: Place) -> Iterator[Finding]:
    yield from _check(torch.float16, KVCacheDtype.AUTO, place)


def check_float32(place: Place) -> Iterator[Finding]:
    yield from _check(torch.float32, KVCacheDtype.AUTO, place)


def check_fp8(place: Place) -> Iterator[Finding]:
    yield from _check(torch.bfloat16, KVCacheDtype.FP8_E4M3, place)


def check_int8(place: Place) -> Iterator[Finding]:
    yield from _check(torch.bfloat16, KVCacheDtype.INT8, place)


def shapes() -> dict[str, Shape]:
    """Return every width, and two of them with every kind of layer."""
    kinds = {
        f"{width}, {name}": replace(WIDTHS[width], **variant)  # type: ignore[arg-type]
        for name, variant in VARIANTS.items()
        for width in ("64", "128")
    }
    return {**WIDTHS, **kinds}


def _check(dtype: torch.dtype, kept_as: KVCacheDtype, place: Place) -> Iterator[Finding]:
    torch.use_deterministic_algorithms(True, warn_only=True)  # new tensors are NaN
    if place.is_rehearsal and dtype is torch.bfloat16:
        dtype = torch.float32  # the interpreter cuts bfloat16 off, and does not round it
    chosen = {name: shapes()[name] for name in REHEARSED} if place.is_rehearsal else shapes()
    all_spans = REHEARSED_SPANS if place.is_rehearsal else SPANS
    for name, shape in chosen.items():
        shape = replace(shape, dtype=dtype, kept_as=kept_as, device=str(place.device))
        if why_not_sizes(shape.codec, shape.head_dim, shape.v_head_size) is None:
            for kind, spans in all_spans.items():
                yield _compare(f"{name}, {kind}", UnroundedScene(shape, spans))


@torch.inference_mode()
def _compare(what: str, scene: Scene) -> Finding:
    paging = scene.paging()
    backend = partial(build_attention, requested=AttentionBackendName.TRITON)
    out = scene.run(backend, paging, scene.store(paging))
    exact = scene.expected()
    shares = (out.double() - exact.value).abs() / exact.error
    worst = float(shares.nan_to_num(torch.inf).max())
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, {"of_allowed_error": worst}, fault)
