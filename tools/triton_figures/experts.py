"""The kernels of layers of experts: cases of well-known sizes, for few and for many tokens."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.experts.activations import Activation
from quire.models.experts.launch import (
    NUM_WARPS,
    ROUTED_AT_ONCE,
    ProductWeight,
    combine_constants,
)
from quire.models.experts.product_kernel import multiply
from quire.models.experts.route_kernel import combine, route
from tools.triton_figures.program import NAMES, Case, Kernels, Program

META = torch.device("meta")
FEW_TOKENS, MANY_TOKENS = 1, 8192
UNALIGNED = frozenset(("num_pairs",))
ROUTED = dict.fromkeys(("counts", "starts", "order"), "*i32")


class Layer(NamedTuple):
    """A layer of experts. `has_plain_gate`: gate and up are activated by the product's kernel, and
    lie one below the other; otherwise they have biases, and lie transposed."""

    num_experts: int
    top_k: int
    hidden_size: int
    size: int
    has_plain_gate: bool = True

    def first(self, dtype: torch.dtype) -> ProductWeight:
        width = 2 * self.size
        if self.has_plain_gate:
            weight = torch.empty(
                self.num_experts, width, self.hidden_size, dtype=dtype, device=META
            )
            return ProductWeight(weight.chunk(2, dim=1), (), Activation.SILU)
        return self._transposed(width, self.hidden_size, dtype)

    def down(self, dtype: torch.dtype) -> ProductWeight:
        if self.has_plain_gate:
            sizes = (self.num_experts, self.hidden_size, self.size)
            return ProductWeight((torch.empty(sizes, dtype=dtype, device=META),), ())
        return self._transposed(self.hidden_size, self.size, dtype)

    def _transposed(self, width: int, size: int, dtype: torch.dtype) -> ProductWeight:
        weight = torch.empty(self.num_experts, size, width, dtype=dtype, device=META)
        bias = torch.empty(self.num_experts, width, dtype=dtype, device=META)
        return ProductWeight((weight.transpose(1, 2),), (bias,))


LAYERS = {
    "8 of 4096 x 14336": Layer(8, 2, 4096, 14336),
    "128 of 2048 x 768": Layer(128, 8, 2048, 768),
    "32 of 2880 x 2880, transposed": Layer(32, 4, 2880, 2880, has_plain_gate=False),
}
"""As Mixtral 8x7B, Qwen3 30B-A3B and gpt-oss 20B have them."""
FEW = {("128 of 2048 x 768", "bf16"): (80, 90)}
"""The capabilities to compile some cases for where there is little time."""


def programs(layer: Layer, dtype: torch.dtype, device: DeviceProperties) -> Iterator[Program]:
    """Yield the programs of a layer, those of its products for one token and for many."""
    name = NAMES[dtype]
    program = partial(Program, unaligned=UNALIGNED)
    ids = {"expert_ids": "*i64"}
    yield program("route", route, {**ids, **ROUTED}, {"PAIRS": ROUTED_AT_ONCE}, NUM_WARPS)
    for part, weight, pairs_per_row in (
        ("first", layer.first(dtype), layer.top_k),
        ("down", layer.down(dtype), 1),
    ):
        pointers = dict.fromkeys(("rows", "weight", "other_weight", "out"), f"*{name}")
        bias = f"*{name}" if weight.biases else None
        types = {**pointers, **ROUTED, "bias": bias, "other_bias": bias}
        for tokens, num_tokens in (("one token", FEW_TOKENS), ("many", MANY_TOKENS)):
            tile = weight.tile(num_tokens * layer.top_k, device)
            constants = weight.constants(tile, pairs_per_row, is_interpreted=False)
            heading = f"multiply, {part}, {tokens}"
            yield program(heading, multiply, types, constants, tile.num_warps, tile.num_stages)
    pointers = dict.fromkeys(("products", "weights", "out"), f"*{name}")
    constants = combine_constants(layer.num_experts, layer.top_k, layer.hidden_size)
    yield program("combine", combine, {**ids, **pointers}, constants, NUM_WARPS)


def cases() -> Iterator[Case]:
    for name, layer in LAYERS.items():
        for dtype in (torch.bfloat16, torch.float32):
            labels = (name, NAMES[dtype])
            yield Case(labels, partial(programs, layer, dtype), FEW.get(labels, ()))


EXPERTS = Kernels(
    "Experts",
    "Of the layers, the number of experts, and the sizes of what they take and of what is between "
    "their two products; `first` is gate and up.",
    ("experts", "dtype"),
    cases,
)
