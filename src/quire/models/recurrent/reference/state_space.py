"""The state space of `RecurrentKernels` in torch, token by token: each state is a function of the
token and the state before it alone, to the bit, whatever else is in the step."""

import torch
from torch import Tensor

from quire.models.recurrent.kernels import ScanInputs
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.piece_bounds import piece_bounds


def state_space(inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
    """Return the outputs as `RecurrentKernels.state_space` states them."""
    rows, steps = inputs.rows.float(), inputs.steps
    num_shared = rows.shape[1] // inputs.b.shape[1]
    out = torch.empty_like(rows)
    for first, end, read, write in piece_bounds(pieces):
        state = states[read].clone()
        for token in range(first, end):
            b = inputs.b[token].float().repeat_interleave(num_shared, 0)
            c = inputs.c[token].float().repeat_interleave(num_shared, 0)
            state *= torch.exp(steps[token] * inputs.rates)[:, None, None]
            state += (steps[token, :, None] * rows[token])[:, :, None] * b[:, None]
            out[token] = (state * c[:, None]).sum(2)
        states[write] = state
    if inputs.skip is not None:
        out += inputs.skip[:, None] * rows
    return out.to(inputs.rows.dtype)
