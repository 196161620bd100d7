"""A gated delta net of `RecurrentKernels` in torch, out of a convolution and a delta rule."""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from quire.models.recurrent.kernels import DeltaNetInputs, DeltaNetWeights
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.convolution import causal_conv
from quire.models.recurrent.reference.delta_rule import gated_delta_rule
from quire.models.recurrent.steady import steady


def gated_delta_net(
    inputs: DeltaNetInputs,
    weights: DeltaNetWeights,
    states: tuple[Tensor, Tensor],
    pieces: Pieces,
) -> Tensor:
    """Return the outputs as `RecurrentKernels.gated_delta_net` states them."""
    conv_states, matrices = states
    mixed = causal_conv(
        inputs.mixed, weights.convolution, None, conv_states, pieces, is_activated=True
    )
    num_tokens, key_size = len(mixed), matrices.shape[2]
    heads = weights.num_key_heads, key_size
    key_width = weights.num_key_heads * key_size
    widths = [key_width, key_width, inputs.gate.shape[1] * inputs.gate.shape[2]]
    query, key, value = mixed.split_with_sizes(widths, dim=-1)
    rates = -weights.log_rates.float().exp()
    found = gated_delta_rule(
        query.reshape(num_tokens, *heads),
        key.reshape(num_tokens, *heads),
        value.reshape(inputs.gate.shape),
        rates * steady(softplus, inputs.step.float() + weights.step_bias.float()),
        steady(torch.sigmoid, inputs.beta) * weights.beta_scale,
        matrices,
        pieces,
    )
    return _gated(found, inputs.gate, weights)


def _gated(heads: Tensor, gate: Tensor, weights: DeltaNetWeights) -> Tensor:
    """Return the outputs of heads [T, Hv, Dv], normed and gated."""
    wide = heads.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + weights.epsilon)
    normed = weights.norm * wide.to(heads.dtype)
    return (normed * steady(silu, gate.float())).to(heads.dtype)
