"""Grouped products of experts against float64, pair by pair, within what rounding explains. Weights
of experts that no pair names are NaN, and so is memory before it is written."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from tests.models.experts.layers import Product
from torch import Tensor

from bench.gpu.check import Finding, Place
from quire.models.experts.activations import Activation
from quire.models.experts.launch import ProductWeight, multiply_grouped, route_pairs

PLAIN = Product(num_rows=33, num_experts=16, top_k=4, width=192, size=256, num_hit=11)
PRODUCTS = {
    "down": PLAIN,
    "one token": replace(PLAIN, num_rows=1),
    "one expert": replace(PLAIN, num_hit=1),
    "odd widths": replace(PLAIN, width=77, size=83),
    "gate and up, silu": replace(PLAIN, activation=Activation.SILU),
    "gate and up, gelu": replace(PLAIN, activation=Activation.GELU_TANH),
    "transposed, interleaved, biases": replace(
        PLAIN, is_transposed=True, is_interleaved=True, has_bias=True, activation=Activation.SILU
    ),
    "many tokens": replace(PLAIN, num_rows=700, num_hit=16),
}
REHEARSED = ("odd widths",)
MOST_ROWS = 40
"""Rows of a product that are compared: float64 takes its time."""


def check_experts(place: Place) -> Iterator[Finding]:
    """Grouped products in each dtype."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # new tensors are NaN
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes[:1] if place.is_rehearsal else dtypes:
        for name in REHEARSED if place.is_rehearsal else PRODUCTS:
            product = replace(PRODUCTS[name], dtype=dtype)
            if place.is_rehearsal:
                product = replace(product, num_rows=5)
            yield _compare(f"{name}, {str(dtype).removeprefix('torch.')}", product, place)


@torch.inference_mode()
def _compare(what: str, product: Product, place: Place) -> Finding:
    def there(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(_moved(tensor, place.device) for tensor in tensors)

    weight = ProductWeight(there(product.weights), there(product.biases), product.activation)
    ids = product.expert_ids.to(place.device)
    routing = route_pairs(ids.flatten(), product.num_experts)
    found = multiply_grouped(product.rows.to(place.device), weight, routing, None)
    found = found.view(product.num_rows, product.top_k, -1).cpu().double()
    worst = 0.0
    for row in range(min(product.num_rows, MOST_ROWS)):
        for rank, expert in enumerate(product.expert_ids[row].tolist()):
            if expert < product.num_experts:
                exact = product.exact(row, expert)
                shares = (found[row, rank] - exact.value).abs() / exact.error
                worst = max(worst, float(shares.nan_to_num(torch.inf).max()))
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, {"of_allowed_error": worst}, fault)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on `device` with the strides that it has, which a copy would not keep."""
    num_elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = tensor.as_strided((num_elements,), (1,), 0).to(device)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
