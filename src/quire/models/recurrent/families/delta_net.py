"""Gated delta nets (arXiv 2412.06464): a causal convolution of queries, keys and values, the gated
delta rule over them, and a gated norm of its outputs."""

from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quire.cache.spec import StateSpec
from quire.models.config import UnsupportedModel
from quire.models.recurrent.division import Division, Span, Spans, Units
from quire.models.recurrent.families.module_parts import side_by_side
from quire.models.recurrent.family import ModuleCore, RecurrentStep
from quire.models.recurrent.kernels import DeltaNetInputs, DeltaNetWeights

APART, IN_HEADS, OLMO = "Qwen3_5", "Qwen3Next", "OlmoHybrid"
"""The kinds by how their projections lie: one each of the convolution's rows, gates, betas and
steps; two whose outputs lie by key heads; and one for each of queries, keys and values too."""
PROJECTIONS = MappingProxyType(
    {
        APART: ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
        IN_HEADS: ("in_proj_qkvz", "in_proj_ba"),
        OLMO: ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"),
    }
)
OUTPUTS = MappingProxyType({APART: "out_proj", IN_HEADS: "out_proj", OLMO: "o_proj"})
CONVOLUTION = "conv1d.weight"


class HeadShape(NamedTuple):
    """The heads of a module."""

    num_keys: int
    num_values: int
    key_size: int
    value_size: int


class DeltaNet:
    """Implements `RecurrentFamily`."""

    class_names = frozenset(
        {
            *("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"),
            *("Qwen3NextGatedDeltaNet", "OlmoHybridGatedDeltaNet"),
        }
    )

    def division(self, part: nn.Module) -> Division:
        heads = _heads(part)
        keys = Units(heads.num_keys, "key heads (linear_num_key_heads)")
        values = Units(heads.num_values, "value heads (linear_num_value_heads)")
        key_rows, value_rows = Span(keys, heads.key_size), Span(values, heads.value_size)
        mixed, of_values = (key_rows, key_rows, value_rows), (Span(values),)
        return Division(
            rows={
                **_projected_rows(part, key_rows, value_rows),
                "conv1d": mixed,
                "A_log": of_values,
                "dt_bias": of_values,
            },
            inputs={OUTPUTS[_kind(part)]: value_rows},
            counts={
                "num_k_heads": (Span(keys),),
                "num_v_heads": of_values,
                "key_dim": (key_rows,),
                "value_dim": (value_rows,),
                "conv_dim": mixed,
            },
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

    def projections(self, part: nn.Module) -> tuple[str, ...]:
        return PROJECTIONS[_kind(part)]

    def core(self, part: nn.Module) -> ModuleCore | None:
        if _kind(part) == IN_HEADS:
            return None
        return ModuleCore(_weights(part), OUTPUTS[_kind(part)])

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        conv_states, matrices = step.states
        projected = step.project(part, self.projections(part), rows)
        found = step.kernels.gated_delta_net(
            _inputs(part, projected), _weights(part), (conv_states, matrices), step.pieces
        )
        out: Tensor = part.get_submodule(OUTPUTS[_kind(part)])(found.flatten(-2))
        return out


def _kind(part: nn.Module) -> str:
    name = type(part).__name__
    return next(kind for kind in (APART, IN_HEADS, OLMO) if name.startswith(kind))


def _heads(part: nn.Module) -> HeadShape:
    names = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    return HeadShape(*(int(getattr(part, name)) for name in names))


def _projected_rows(part: nn.Module, keys: Span, values: Span) -> dict[str, Spans]:
    """Return the outputs of each projection. `keys` and `values` are those of all heads."""
    kind, of_values = _kind(part), (Span(values.units),)
    if kind == OLMO:
        return {
            **dict.fromkeys(("q_proj", "k_proj"), (keys,)),
            **dict.fromkeys(("v_proj", "g_proj"), (values,)),
            **dict.fromkeys(("a_proj", "b_proj"), of_values),
        }
    if kind == APART:
        narrow = dict.fromkeys(("in_proj_a", "in_proj_b"), of_values)
        return {"in_proj_qkv": (keys, keys, values), "in_proj_z": (values,), **narrow}
    num_shared = values.units.count // keys.units.count
    width = 2 * keys.size + 2 * num_shared * values.size
    return {
        "in_proj_qkvz": (Span(keys.units, width),),
        "in_proj_ba": (Span(keys.units, 2 * num_shared),),
    }


def _inputs(part: nn.Module, projected: tuple[Tensor, ...]) -> DeltaNetInputs:
    heads = _heads(part)
    if _kind(part) == IN_HEADS:
        return _by_key_heads(heads, *projected)
    *mixing, gate, beta, step = projected
    gate = gate.view(-1, heads.num_values, heads.value_size)
    return DeltaNetInputs(side_by_side(mixing), gate, beta, step)


def _by_key_heads(heads: HeadShape, wide: Tensor, narrow: Tensor) -> DeltaNetInputs:
    """Return the projections out of two that have for each key head what belongs to it."""
    num_shared = heads.num_values // heads.num_keys
    num_values = num_shared * heads.value_size
    parts = wide.view(len(wide), heads.num_keys, -1).split_with_sizes(
        [heads.key_size, heads.key_size, num_values, num_values], dim=-1
    )
    query, key, value, gate = (each.flatten(1) for each in parts)
    beta, step = narrow.view(len(narrow), heads.num_keys, -1).chunk(2, dim=-1)
    return DeltaNetInputs(
        torch.cat([query, key, value], dim=-1),
        gate.view(-1, heads.num_values, heads.value_size),
        beta.flatten(1),
        step.flatten(1),
    )


def _weights(part: nn.Module) -> DeltaNetWeights:
    norm = part.get_submodule("o_norm" if _kind(part) == OLMO else "norm")
    return DeltaNetWeights(
        convolution=part.get_parameter(CONVOLUTION).squeeze(1),
        log_rates=part.get_parameter("A_log"),
        step_bias=part.get_parameter("dt_bias"),
        norm=norm.get_parameter("weight"),
        epsilon=float(getattr(norm, "variance_epsilon")),  # noqa: B009
        num_key_heads=_heads(part).num_keys,
        beta_scale=2.0 if getattr(part, "allow_neg_eigval", False) else 1.0,
    )
