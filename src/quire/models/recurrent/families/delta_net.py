"""Gated delta nets (arXiv 2412.06464): a causal convolution of queries, keys and values, the gated
delta rule over them, and a gated norm of its outputs."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from quire.cache.spec import StateSpec
from quire.models.config import UnsupportedModel
from quire.models.recurrent.family import RecurrentStep
from quire.models.recurrent.steady import steady

APART, IN_HEADS, OLMO = "Qwen3_5", "Qwen3Next", "OlmoHybrid"
"""The kinds by how their projections lie: one each of the convolution's rows, gates, betas and
steps; two whose outputs lie by key heads; and one for each of queries, keys and values too."""
CONVOLUTION = "conv1d.weight"


class Projections(NamedTuple):
    """The projections of T rows, in the model's dtype.

    mixed: [T, channels of the convolution], queries, keys and values.
    gate: [T, Hv, Dv]. beta, step: [T, Hv], before their functions.
    """

    mixed: Tensor
    gate: Tensor
    beta: Tensor
    step: Tensor


class HeadShape(NamedTuple):
    """The heads of a module."""

    num_keys: int
    num_values: int
    key_size: int
    value_size: int

    @property
    def key_width(self) -> int:
        return self.num_keys * self.key_size

    @property
    def value_width(self) -> int:
        return self.num_values * self.value_size


class DeltaNet:
    """Implements `RecurrentFamily`."""

    class_names = frozenset(
        {
            *("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"),
            *("Qwen3NextGatedDeltaNet", "OlmoHybridGatedDeltaNet"),
        }
    )

    def state(self, part: nn.Module) -> StateSpec:
        heads, activation = _heads(part), str(getattr(part, "activation", ""))
        if activation not in ("silu", "swish"):
            raise UnsupportedModel(
                type(part).__name__, f"their convolution has the activation {activation!r}"
            )
        channels, _, width = part.get_parameter(CONVOLUTION).shape
        return StateSpec(
            ((channels, width - 1), (heads.num_values, heads.key_size, heads.value_size))
        )

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        heads, given = _heads(part), _projections(part, rows)
        mixed = step.kernels.causal_conv(
            given.mixed,
            part.get_parameter(CONVOLUTION).squeeze(1),
            None,
            step.states[0],
            step.pieces,
            is_activated=True,
        )
        query, key, value = mixed.split_with_sizes(
            [heads.key_width, heads.key_width, heads.value_width], dim=-1
        )
        found = step.kernels.gated_delta_rule(
            query.view(-1, heads.num_keys, heads.key_size),
            key.view(-1, heads.num_keys, heads.key_size),
            value.view(-1, heads.num_values, heads.value_size),
            _decay(part, given.step),
            _beta(part, given.beta),
            step.states[1],
            step.pieces,
        )
        is_olmo = _kind(part) == OLMO
        norm, last = ("o_norm", "o_proj") if is_olmo else ("norm", "out_proj")
        normed = part.get_submodule(norm)(found.flatten(0, 1), given.gate.flatten(0, 1))
        out: Tensor = part.get_submodule(last)(normed.view(len(rows), -1))
        return out


def _kind(part: nn.Module) -> str:
    name = type(part).__name__
    return next(kind for kind in (APART, IN_HEADS, OLMO) if name.startswith(kind))


def _heads(part: nn.Module) -> HeadShape:
    names = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    return HeadShape(*(int(getattr(part, name)) for name in names))


def _projections(part: nn.Module, rows: Tensor) -> Projections:
    def project(name: str) -> Tensor:
        out: Tensor = part.get_submodule(name)(rows)
        return out

    heads, kind = _heads(part), _kind(part)
    by_head = (-1, heads.num_values, heads.value_size)
    if kind == OLMO:
        mixed = torch.cat([project(name) for name in ("q_proj", "k_proj", "v_proj")], dim=-1)
        gate = project("g_proj").view(by_head)
        return Projections(mixed, gate, project("b_proj"), project("a_proj"))
    if kind == APART:
        gate = project("in_proj_z").view(by_head)
        mixed = project("in_proj_qkv")
        return Projections(mixed, gate, project("in_proj_b"), project("in_proj_a"))
    return _by_key_heads(heads, project("in_proj_qkvz"), project("in_proj_ba"))


def _by_key_heads(heads: HeadShape, wide: Tensor, narrow: Tensor) -> Projections:
    """Return the projections out of two that have for each key head what belongs to it."""
    num_shared = heads.num_values // heads.num_keys
    num_values = num_shared * heads.value_size
    parts = wide.view(len(wide), heads.num_keys, -1).split_with_sizes(
        [heads.key_size, heads.key_size, num_values, num_values], dim=-1
    )
    query, key, value, gate = (each.flatten(1) for each in parts)
    beta, step = narrow.view(len(narrow), heads.num_keys, -1).chunk(2, dim=-1)
    return Projections(
        torch.cat([query, key, value], dim=-1),
        gate.view(-1, heads.num_values, heads.value_size),
        beta.flatten(1),
        step.flatten(1),
    )


def _decay(part: nn.Module, step: Tensor) -> Tensor:
    """Return the logarithm of each head's decay [T, Hv], in float32."""
    rates = -part.get_parameter("A_log").float().exp()
    return rates * steady(softplus, step.float() + part.get_parameter("dt_bias"))


def _beta(part: nn.Module, beta: Tensor) -> Tensor:
    found = steady(torch.sigmoid, beta)
    return found * 2.0 if getattr(part, "allow_neg_eigval", False) else found
