"""Prompts without earlier context by PyTorch's flash attention, against float64, where this version
of torch has it. A rehearsal has a stand-in of its function."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch
from tests.models.attention.scene import Scene, Shape, Span
from tests.models.attention.varlen_stand_in import varlen_installed

from bench.gpu.check import Finding, Place
from quire.models.attention.triton.backend import TritonAttention
from quire.models.attention.triton.fresh import why_not_fresh
from quire.models.attention.triton.support import describe

DTYPES = (torch.bfloat16, torch.float16)
PLAIN = Shape(num_heads=8, num_kv_heads=2, head_dim=64, v_head_size=64)
WIDTHS = {
    "64": PLAIN,
    "128": replace(PLAIN, num_heads=32, num_kv_heads=8, head_dim=128, v_head_size=128),
    "128, own K and V": replace(PLAIN, num_heads=4, num_kv_heads=4, head_dim=128, v_head_size=128),
    "256": replace(PLAIN, head_dim=256, v_head_size=256),
}
LENGTHS = (700, 1, 16, 129, 33)
REHEARSED_LENGTHS = (40, 1, 17)
WINDOWS = (None, 100)
REHEARSED_WINDOWS = (None, 10)


@torch.inference_mode()
def check_fresh(place: Place) -> Iterator[Finding]:
    """Check every width with and without a window, or say why it cannot be had."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # new tensors are NaN
    with varlen_installed() if place.is_rehearsal else nullcontext():
        why = why_not_fresh()
        if why is not None:
            yield Finding("varlen_attn", {"not_run": why})
            return
        for name, shape in _shapes(place).items():
            yield _compare(name, replace(shape, device=str(place.device)), place)


def _shapes(place: Place) -> dict[str, Shape]:
    widths = {"64": WIDTHS["64"]} if place.is_rehearsal else WIDTHS
    return {
        f"{width}, window {window}, {str(dtype).removeprefix('torch.')}": replace(
            shape, window_size=window, dtype=dtype
        )
        for width, shape in widths.items()
        for window in (REHEARSED_WINDOWS if place.is_rehearsal else WINDOWS)
        for dtype in DTYPES
    }


def _compare(name: str, shape: Shape, place: Place) -> Finding:
    lengths = REHEARSED_LENGTHS if place.is_rehearsal else LENGTHS
    scene = Scene(shape, [Span(0, length) for length in lengths])
    paging = scene.paging()
    backend = TritonAttention(scene.store(paging), describe(place.device), uses_flash=True)
    out = scene.attend(backend.begin(scene.batch(paging)))
    exact = scene.expected()
    worst = float(((out.double() - exact.value).abs() / exact.error).nan_to_num(torch.inf).max())
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(name, {"of_allowed_error": worst}, fault)
