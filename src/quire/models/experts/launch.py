"""Launches the kernels of a layer of experts. Grids and what is allocated depend on shapes alone,
and nothing waits for the device, so that a step can be captured and replayed with other numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.models.attention.triton.support import describe
from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.experts.activations import Activation
from quire.models.experts.product_kernel import multiply
from quire.models.experts.route_kernel import combine, route
from quire.models.experts.tiles import ProductTile, choose_product_tile

DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
ROUTED_AT_ONCE = 1024
COMBINED_COLUMNS = 1024
NUM_WARPS = 4
"""Warps of the kernels that only copy numbers: Triton's default."""


class Routing(NamedTuple):
    """The pairs of a token and one of its experts, of which there are P, sorted by expert.

    counts, starts: [experts] int32, how many pairs each expert has, and its first one in `order`.
    order: [P] int32, numbers of pairs; as many as have one of these experts are set.
    """

    counts: Tensor
    starts: Tensor
    order: Tensor


@dataclass(frozen=True, slots=True)
class ProductWeight:
    """The weight [experts, width, size] that a product multiplies by, of any strides, and its bias
    [experts, width]. With an activation there are two of each, gate and up, of equal strides."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    activation: Activation = Activation.NONE

    def constants(
        self, tile: ProductTile, pairs_per_row: int, *, is_interpreted: bool
    ) -> dict[str, object]:
        """Return the constants of `multiply`. The interpreter lacks bfloat16, and takes float32."""
        weight = self.weights[0]
        num_experts, width, size = weight.shape
        strides = weight.stride()
        return {
            "NUM_EXPERTS": num_experts,
            "EXPERTS": triton.next_power_of_2(num_experts),
            "PAIRS_PER_ROW": pairs_per_row,
            "WIDTH": width,
            "SIZE": size,
            "EXPERT_STRIDE": strides[0],
            "COLUMN_STRIDE": strides[1],
            "DEPTH_STRIDE": strides[2],
            "BIAS_STRIDE": self.biases[0].stride(0) if self.biases else 0,
            "HAS_BIAS": bool(self.biases),
            "ACTIVATION": int(self.activation),
            "COMPUTE": tl.float32 if is_interpreted else DTYPES[weight.dtype],
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
        }

    def tile(self, num_pairs: int, device: DeviceProperties) -> ProductTile:
        return choose_product_tile(
            self.weights[0].dtype,
            num_pairs,
            len(self.weights[0]),
            device,
            is_gated=self.activation is not Activation.NONE,
        )


def route_pairs(expert_ids: Tensor, num_experts: int) -> Routing:
    """Sort pairs by expert. `expert_ids` [P] are whole numbers; pairs with one that is negative or
    not below `num_experts` are left out."""
    expert_ids = expert_ids.contiguous()
    counts, starts = (expert_ids.new_empty(num_experts, dtype=torch.int32) for _ in range(2))
    order = torch.empty_like(expert_ids, dtype=torch.int32)
    route[(num_experts,)](expert_ids, counts, starts, order, len(expert_ids), PAIRS=ROUTED_AT_ONCE)
    return Routing(counts, starts, order)


def multiply_grouped(
    rows: Tensor, weight: ProductWeight, routing: Routing, tile: ProductTile | None = None
) -> Tensor:
    """Return [P, width], for each pair its row times the weight of its expert, in the weight's
    dtype, added up in float32. `rows` [n, size] has a row for every P / n pairs that follow each
    other. What belongs to pairs that are not in `routing` is not set."""
    num_experts, width, size = weight.weights[0].shape
    num_pairs = len(routing.order)
    device = describe(rows.device)
    tile = tile or weight.tile(num_pairs, device)
    rows = rows.contiguous()
    out = rows.new_empty(num_pairs, width)
    num_column_tiles = -(-width // tile.columns)
    multiply[(tile.num_row_tiles(num_pairs, num_experts), num_column_tiles)](
        rows,
        weight.weights[0],
        weight.weights[-1],
        weight.biases[0] if weight.biases else None,
        weight.biases[-1] if weight.biases else None,
        out,
        *routing,
        **weight.constants(tile, num_pairs // len(rows), is_interpreted=device.is_interpreted),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def combine_products(
    products: Tensor, expert_ids: Tensor, weights: Tensor, num_experts: int
) -> Tensor:
    """Return [tokens, width], the sum of each token's `products` [P, width] by its `weights`
    [tokens, top_k], in float32 and in order, without those whose `expert_ids` [tokens, top_k] are
    none of these experts'. It has the dtype of `products`."""
    num_tokens, top_k = expert_ids.shape
    width = products.shape[1]
    out = products.new_empty(num_tokens, width)
    combine[(num_tokens, -(-width // COMBINED_COLUMNS))](
        products,
        expert_ids.contiguous(),
        weights.contiguous(),
        out,
        **combine_constants(num_experts, top_k, width),
        num_warps=NUM_WARPS,
    )
    return out


def combine_constants(num_experts: int, top_k: int, width: int) -> dict[str, object]:
    return {
        "NUM_EXPERTS": num_experts,
        "TOP_K": top_k,
        "WIDTH": width,
        "COLUMNS": COMBINED_COLUMNS,
    }
