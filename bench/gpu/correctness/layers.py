"""The kernels between a decoder's linear layers against their formulas in float64, within what
rounding explains, and models that are made of them against the same models without."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from tests.models.layers.layer_formulas import Made, gated, normed, roped
from tests.models.layers.test_linears import logits
from tests.models.rounding import Exact
from torch import Tensor

from bench.gpu.check import Finding, Place
from bench.gpu.correctness.small_models import checkpoint
from quire.models.config import ModelDtype
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.triton.choice import triton_kernels
from quire.models.layers.triton.triton_layers import TritonLayers
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from quire.models.native.decoder.fused import ACTIVATIONS, NORM_KINDS, HeadLayout


class Sizes(NamedTuple):
    """The sizes of a layer, and of a step."""

    num_tokens: int
    hidden_size: int
    num_query: int
    num_key: int
    head_size: int
    rotary_dim: int
    width: int


SIZES = (Sizes(7, 896, 14, 2, 64, 64, 4864), Sizes(33, 4096, 32, 8, 128, 96, 14336))
REHEARSED = (Sizes(2, 40, 2, 1, 24, 16, 70),)
FAMILIES = ("llama", "qwen3", "gemma")
MAX_ERROR = 1e-3
"""The largest error of whole logits, in parts of their spread: in float32 a fault is larger."""


def check_layers(place: Place) -> Iterator[Finding]:
    """Each kernel in each dtype, and whole models."""
    kernels = TritonLayers()
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes[:1] if place.is_rehearsal else dtypes:
        made = Made(kernels, dtype)
        for sizes in REHEARSED if place.is_rehearsal else SIZES:
            yield from _kernels(made, sizes, place)
    for family in FAMILIES[1:2] if place.is_rehearsal else FAMILIES:
        yield _model(family, place)


@torch.inference_mode()
def _kernels(made: Made, sizes: Sizes, place: Place) -> Iterator[Finding]:
    what = f"{sizes.hidden_size}, {str(made.dtype).removeprefix('torch.')}"

    def there(tensor: Tensor) -> Tensor:
        return tensor.to(place.device, copy=True)

    x, added = (made.numbers(sizes.num_tokens, sizes.hidden_size, seed=seed) for seed in (0, 1))
    for kind, name in enumerate(NORM_KINDS):
        scale = made.scale_of(sizes.hidden_size, kind)
        moved = scale._replace(weight=there(scale.weight))
        found = made.fused.norm(there(x), moved, there(added))
        yield _finding(f"norm, {name}, {what}", found, normed(x + added, scale))
    scales = [made.scale_of(sizes.head_size, 0, seed=seed) for seed in (2, 3)]
    heads = HeadLayout(sizes.num_query, sizes.num_key, sizes.head_size, *scales)
    lent = HeadLayout(*heads[:3], *(each._replace(weight=there(each.weight)) for each in scales))
    rows = made.numbers(sizes.num_tokens, (sum(heads[:2]) + sizes.num_key) * sizes.head_size)
    angles = made.numbers(sizes.num_tokens, sizes.rotary_dim // 2, seed=4).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    out = there(rows)
    made.fused.rope(out, lent, there(cos), there(sin))
    before, after = (
        each[:, : sum(heads[:2]) * sizes.head_size].view(sizes.num_tokens, -1, sizes.head_size)
        for each in (rows, out)
    )
    yield _finding(f"rope, {what}", after, roped(before, heads, cos, sin))
    gates = made.numbers(sizes.num_tokens, 2 * sizes.width) * 4
    for act, name in enumerate(ACTIVATIONS):
        yield _finding(
            f"gate, {name}, {what}", made.fused.gate(there(gates), act), gated(gates, name)
        )


def _finding(what: str, found: Tensor, exact: Exact) -> Finding:
    shares = (found.cpu().double() - exact.value.double()).abs() / exact.error.double()
    worst = float(shares.nan_to_num(torch.inf).max())
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, {"of_allowed_error": worst}, fault)


def _model(family: str, place: Place) -> Finding:
    """Compare a model of fused layers with the same one without."""
    plain, fused = (_loaded(family, place, is_fused=each) for each in (False, True))
    expected, found = logits(plain), logits(fused)
    error = float((found - expected).square().mean().sqrt() / expected.std())
    fault = None
    if not isinstance(vars(fused.module).get("forward"), DecoderForward):
        fault = "the fused layers were not taken"
    elif not error <= MAX_ERROR:
        fault = "the logits differ"
    return Finding(f"{family}, whole", {"error_of_spread": error}, fault)


def _loaded(family: str, place: Place, *, is_fused: bool) -> LoadedModel:
    return load_model(
        ModelSource(str(checkpoint(family, place))),
        dtype=ModelDtype.FLOAT32,
        device=place.device,
        on_progress=lambda phase, done, total: None,
        kernels=triton_kernels(place.device) if is_fused else None,
    )
