"""The forward of a module of experts by grouped products: what its own forward says, without asking
the device which experts are hit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quire.models.experts.activations import Activation
from quire.models.experts.launch import ProductWeight, Routing
from quire.models.experts.operators import combine, multiply, route


class ExpertWeights(NamedTuple):
    """The weights of experts as they are stored, each [experts, width, size], of any strides.

    first, first_biases: up alone, or gate and up, side by side in one or in two of equal strides.
    """

    first: tuple[Tensor, ...]
    down: Tensor
    first_biases: tuple[Tensor, ...] = ()
    down_biases: tuple[Tensor, ...] = ()

    @property
    def halves(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return gate and up apart, and their biases."""
        if len(self.first) == 2:
            return self.first, self.first_biases
        biases = (half for bias in self.first_biases for half in bias.chunk(2, dim=1))
        return tuple(self.first[0].chunk(2, dim=1)), tuple(biases)


@dataclass(frozen=True, slots=True)
class ExpertsForward:
    """Stands in for the forward of a module of experts.

    read: returns the module's weights, which may be replaced between calls.
    activate: makes [n, size] of the first products, gate and up side by side or up alone.
    activation: what the kernel activates by instead; NONE where it knows no such.
    norm: what the last products go through, if anything.
    """

    module: nn.Module
    read: Callable[[nn.Module], ExpertWeights]
    activate: Callable[[Tensor], Tensor]
    activation: Activation
    norm: Callable[[Tensor], Tensor] | None = None

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return [tokens, size] of as many `hidden_states`, whose experts and their weights are
        [tokens, top_k]. Experts that are not the module's add nothing."""
        weights = self.read(self.module)
        num_experts = len(weights.down)
        routing = route(top_k_index.reshape(-1), num_experts)
        rows = hidden_states.to(weights.down.dtype)
        if self.activation is Activation.NONE:
            inner = self.activate(_multiply_each(rows, weights, routing))
        else:
            inner = multiply(rows, ProductWeight(*weights.halves, self.activation), routing)
        products = multiply(inner, ProductWeight((weights.down,), weights.down_biases), routing)
        if self.norm is not None:
            products = self.norm(products)
        out = combine(products, top_k_index, top_k_weights, num_experts)
        return out.to(hidden_states.dtype)


def _multiply_each(rows: Tensor, weights: ExpertWeights, routing: Routing) -> Tensor:
    """Return the first products side by side."""
    products = [
        multiply(rows, ProductWeight((weight,), weights.first_biases[index : index + 1]), routing)
        for index, weight in enumerate(weights.first)
    ]
    return products[0] if len(products) == 1 else torch.cat(products, dim=1)
