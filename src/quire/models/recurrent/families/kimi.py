"""Kimi delta attention (arXiv 2510.26692): a gated delta rule whose decay is of each channel.

rows -> q_proj, k_proj, v_proj -> causal convolution, SiLU -> delta rule -> norm, gated -> o_proj
     -> f_a_proj, f_b_proj (decay), b_proj (beta) --------------/            /
     -> g_a_proj, g_b_proj (gate) -------------------------------------------
"""

import torch
from torch import Tensor, nn

from quire.cache.spec import StateSpec
from quire.models.recurrent.division import Division, Span, Units
from quire.models.recurrent.families.module_parts import (
    conv_weights,
    count,
    refuse_other_activation,
    side_by_side,
)
from quire.models.recurrent.family import ModuleCore, RecurrentStep
from quire.models.recurrent.steady import steady

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "b_proj", "forget_gate.f_a_proj", "g_a_proj")
NUM_MIXED = 3
"""The projections that begin PROJECTIONS and go through the convolution."""
LINEAR = 20.0
"""The number above which softplus is its argument, as transformers has it."""


class KimiFamily:
    """Implements `RecurrentFamily` for the delta attention of Kimi Linear."""

    class_names = frozenset({"KimiLinearDeltaAttention"})

    def division(self, part: nn.Module) -> Division:
        num_heads, head_size = _heads(part)
        each = Span(Units(num_heads, "heads (linear_num_heads)"))
        rows = Span(each.units, head_size)
        mixed = ("q_proj", "k_proj", "v_proj")
        wide = (*mixed, "g_b_proj", "forget_gate.f_b_proj", "forget_gate.dt_bias")
        return Division(
            rows={
                **dict.fromkeys(wide, (rows,)),
                "conv1d": (rows,) * len(mixed),
                "b_proj": (each,),
                "forget_gate.A_log": (each,),
            },
            inputs={"o_proj": rows},
            counts={
                **dict.fromkeys(("num_heads", "forget_gate.num_heads"), (each,)),
                **dict.fromkeys(("qkv_dim", "forget_gate.qkv_dim"), (rows,)),
                "conv_dim": (rows,) * len(mixed),
            },
        )

    def state(self, part: nn.Module) -> StateSpec:
        refuse_other_activation(part)
        num_heads, head_size = _heads(part)
        tail = count(part, "conv_kernel_size") - 1
        num_channels = NUM_MIXED * num_heads * head_size
        return StateSpec(((num_channels, tail), (num_heads, head_size, head_size)))

    def projections(self, part: nn.Module) -> tuple[str, ...]:
        return PROJECTIONS

    def core(self, part: nn.Module) -> ModuleCore | None:
        return None

    def compute(self, part: nn.Module, rows: Tensor, step: RecurrentStep) -> Tensor:
        conv_states, matrices = step.states
        heads = _heads(part)
        *mixing, beta, low_decay, low_gate = step.project(part, PROJECTIONS, rows)
        mixed = side_by_side(mixing)
        mixed = step.kernels.causal_conv(
            mixed, *conv_weights(part), conv_states, step.pieces, is_activated=True
        )
        query, key, value = (each.view(-1, *heads) for each in mixed.chunk(NUM_MIXED, dim=-1))
        decay = _decay(part.get_submodule("forget_gate"), low_decay).view(-1, *heads)
        beta = steady(torch.sigmoid, beta)
        outputs = step.kernels.gated_delta_rule(
            query, key, value, decay, beta, matrices, step.pieces
        )
        gate = part.get_submodule("g_b_proj")(low_gate)
        gated = _gated(part.get_submodule("o_norm"), outputs, gate.view(-1, *heads))
        projected: Tensor = part.get_submodule("o_proj")(gated.flatten(-2))
        return projected


def _heads(part: nn.Module) -> tuple[int, int]:
    """Return the number of heads and their size."""
    return count(part, "num_heads"), count(part, "head_dim")


def _decay(forget_gate: nn.Module, low: Tensor) -> Tensor:
    """Return the logarithm of each channel's decay [T, num_heads * head_size], in float32."""
    steps: Tensor = forget_gate.get_submodule("f_b_proj")(low)
    rates = forget_gate.get_parameter("A_log").float().exp().flatten()
    sizes = steady(_softplus, steps.float() + forget_gate.get_parameter("dt_bias").float())
    return sizes * -rates.repeat_interleave(count(forget_gate, "head_dim"))


def _softplus(numbers: Tensor) -> Tensor:
    return torch.where(numbers > LINEAR, numbers, torch.log(1.0 + torch.exp(numbers)))


def _gated(norm: nn.Module, outputs: Tensor, gate: Tensor) -> Tensor:
    """Return the outputs [T, num_heads, head_size], each head normed and then gated."""
    epsilon: object = getattr(norm, "variance_epsilon", None)
    assert isinstance(epsilon, float)
    wide = outputs.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    scaled = norm.get_parameter("weight").float() * wide
    return (scaled * steady(torch.sigmoid, gate.float())).to(outputs.dtype)
