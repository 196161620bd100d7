"""Recognises mixtures of experts whose routing has to be replaced along with their experts: some
hand every token to every expert, scaled by a score that is mostly 0, others sort tokens by expert
and ask the device how many each has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from quire.models.experts.activations import recognise
from quire.models.experts.forward import ExpertsForward, ExpertWeights
from quire.models.experts.launch import ProductWeight, Routing
from quire.models.experts.modules import Forward, function_of, gate_by, has_attributes, is_float
from quire.models.experts.operators import multiply, route

SCALED = ("top_k", "num_experts", "experts", "router", "shared_expert")
SCALED_EXPERTS = ("gate_up_proj", "down_proj", "act_fn", "expert_dim")
SORTING = ("input_size", "num_experts", "top_k", "layer")
SORTED_EXPERTS = ("input_size", "num_experts", "output_size", "weight")


@dataclass(frozen=True, slots=True)
class ScaledInputs:
    """Replaces a mixture that scales the inputs of its experts and has a shared expert."""

    router: Callable[[Tensor], tuple[Tensor, Tensor]]
    shared_expert: Callable[[Tensor], Tensor]
    routed: Forward
    top_k: int

    def __call__(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Return [tokens, size] of as many hidden states, and the router's logits."""
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        scores, logits = self.router(rows)
        top_scores, experts = scores.topk(self.top_k, dim=1)
        scaled = (rows[:, None] * top_scores[:, :, None]).flatten(0, 1)
        ones = torch.ones_like(top_scores).view(-1, 1)
        out = self.routed(scaled, experts.view(-1, 1), ones).view(len(rows), self.top_k, -1)
        return self.shared_expert(rows) + out.sum(dim=1), logits


def find_block(module: nn.Module) -> Callable[..., object] | None:
    """Return what can stand in for the forward of a part of such a mixture, or None if the module
    is none, or one whose weights the kernels do not take."""
    if not is_float(module):
        return None
    return _scaled(module) or _sorted(module)


def _scaled(module: nn.Module) -> ScaledInputs | None:
    if not has_attributes(module, SCALED):
        return None
    experts = module.get_submodule("experts")
    top_k = module.top_k
    if not has_attributes(experts, SCALED_EXPERTS) or not isinstance(top_k, int):
        return None
    activate = partial(gate_by, function_of(experts, "act_fn"))
    routed = ExpertsForward(experts, _read_scaled, activate, recognise(activate))
    router, shared_expert = (module.get_submodule(name) for name in ("router", "shared_expert"))
    return ScaledInputs(router, shared_expert, routed, top_k)


def _read_scaled(experts: nn.Module) -> ExpertWeights:
    first, down = (experts.get_parameter(name) for name in ("gate_up_proj", "down_proj"))
    return ExpertWeights((first.transpose(1, 2),), down.transpose(1, 2))


@dataclass(frozen=True, slots=True)
class SortingRouter:
    """Stands in for a router that returns pairs sorted by expert, and how many each has: the latter
    as a Routing of rows in that order, for `SortedExperts`."""

    layer: Callable[[Tensor], Tensor]
    num_experts: int
    top_k: int

    def __call__(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor, Routing, Tensor]:
        logits = self.layer(hidden_states).float()
        top_logits, experts = logits.topk(self.top_k, dim=1)
        gates = top_logits.softmax(dim=1).type_as(hidden_states).flatten()
        routing = route(experts.flatten(), self.num_experts)
        order = routing.order.long()
        as_sorted = torch.arange(len(order), dtype=torch.int32, device=order.device)
        rows = routing._replace(order=as_sorted)
        return order, order // self.top_k, gates[order], rows, logits


@dataclass(frozen=True, slots=True)
class SortedExperts:
    """Stands in for linear layers of experts, over rows sorted by expert."""

    module: nn.Module

    def __call__(self, rows: Tensor, routing: Routing) -> Tensor:
        return multiply(rows, ProductWeight((self.module.get_parameter("weight"),), ()), routing)


def _sorted(module: nn.Module) -> SortingRouter | SortedExperts | None:
    if has_attributes(module, SORTED_EXPERTS):
        return SortedExperts(module)
    num_experts, top_k = (getattr(module, name, None) for name in ("num_experts", "top_k"))
    if not has_attributes(module, SORTING):
        return None
    if not isinstance(num_experts, int) or not isinstance(top_k, int):
        return None
    return SortingRouter(function_of(module, "layer"), num_experts, top_k)
