"""The gated delta rule of `RecurrentKernels` in torch, token by token: each state is a function of
the token and the state before it alone, to the bit, whatever else is in the step."""

import torch
from torch import Tensor

from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.piece_bounds import piece_bounds

NORM_EPSILON = 1e-6


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    pieces: Pieces,
) -> Tensor:
    """Return the outputs as `RecurrentKernels.gated_delta_rule` states them."""
    out = torch.empty(value.shape, device=value.device)
    num_shared = value.shape[1] // key.shape[1]
    scale = key.shape[2] ** -0.5
    for first, end, read, write in piece_bounds(pieces):
        state = states[read].clone()
        for token in range(first, end):
            keys = _normed(key[token]).repeat_interleave(num_shared, 0)
            queries = _normed(query[token]).repeat_interleave(num_shared, 0) * scale
            rates = decay[token].exp()
            state *= rates.reshape(len(rates), -1, 1)
            found = (state * keys[:, :, None]).sum(1)
            change = beta[token].float()[:, None] * (value[token].float() - found)
            state += keys[:, :, None] * change[:, None]
            out[token] = (state * queries[:, :, None]).sum(1)
        states[write] = state
    return out.to(value.dtype)


def _normed(heads: Tensor) -> Tensor:
    """Return the rows of `heads` [heads, size] divided by their L2 norms, in float32."""
    wide = heads.float()
    return wide * (wide.square().sum(-1, keepdim=True) + NORM_EPSILON).rsqrt()
