"""The kernels of a layer of experts as operators of torch, which also say what shapes they return:
so a step over them can be followed on the `meta` device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.models.experts.activations import Activation
from quire.models.experts.launch import (
    ProductWeight,
    Routing,
    combine_products,
    multiply_grouped,
    route_pairs,
)

ANY_DEVICE = "CompositeExplicitAutograd"


def route(expert_ids: Tensor, num_experts: int) -> Routing:
    """Call `route_pairs`."""
    return Routing(*torch.ops.quire.route_pairs(expert_ids, num_experts))


def multiply(rows: Tensor, weight: ProductWeight, routing: Routing) -> Tensor:
    """Call `multiply_grouped`."""
    out: Tensor = torch.ops.quire.multiply_grouped(
        rows, list(weight.weights), list(weight.biases), list(routing), int(weight.activation)
    )
    return out


def combine(products: Tensor, expert_ids: Tensor, weights: Tensor, num_experts: int) -> Tensor:
    """Call `combine_products`."""
    out: Tensor = torch.ops.quire.combine_products(products, expert_ids, weights, num_experts)
    return out


def _route(expert_ids: Tensor, num_experts: int) -> tuple[Tensor, ...]:
    return tuple(route_pairs(expert_ids, num_experts))


def _multiply(
    rows: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    routing: Sequence[Tensor],
    activation: int,
) -> Tensor:
    weight = ProductWeight(weights, biases, Activation(activation))
    return multiply_grouped(rows, weight, Routing(*routing))


def _route_shapes(expert_ids: Tensor, num_experts: int) -> tuple[Tensor, ...]:
    sizes = (num_experts, num_experts, len(expert_ids))
    return tuple(expert_ids.new_empty(size, dtype=torch.int32) for size in sizes)


def _multiply_shapes(
    rows: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    routing: Sequence[Tensor],
    activation: int,
) -> Tensor:
    return rows.new_empty(len(routing[-1]), weights[0].shape[1])


def _combine_shapes(
    products: Tensor, expert_ids: Tensor, weights: Tensor, num_experts: int
) -> Tensor:
    return products.new_empty(len(expert_ids), products.shape[1])


OPERATORS = (
    (
        "route_pairs(Tensor expert_ids, int num_experts) -> (Tensor, Tensor, Tensor)",
        _route,
        _route_shapes,
    ),
    (
        "multiply_grouped(Tensor rows, Tensor[] weights, Tensor[] biases, Tensor[] routing, "
        "int activation) -> Tensor",
        _multiply,
        _multiply_shapes,
    ),
    (
        "combine_products(Tensor products, Tensor expert_ids, Tensor weights, int num_experts) "
        "-> Tensor",
        combine_products,
        _combine_shapes,
    ),
)
"""The schema, implementation and shape function of each operator."""


def _register() -> torch.library.Library:
    """Return the library, whose operators are there as long as it is."""
    library = torch.library.Library("quire", "DEF")  # type: ignore[no-untyped-call]
    for schema, compute, shapes in OPERATORS:
        name: str = library.define(schema)  # type: ignore[no-untyped-call]
        library.impl(name, compute, ANY_DEVICE)  # type: ignore[no-untyped-call]
        library.impl(name, shapes, "Meta")  # type: ignore[no-untyped-call]
    return library


LIBRARY = _register()
