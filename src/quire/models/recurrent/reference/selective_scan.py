"""The selective scan of `RecurrentKernels` in torch, token by token: each state is a function of
the token and the state before it alone, to the bit, whatever else is in the step."""

import torch
from torch import Tensor

from quire.models.recurrent.kernels import ScanInputs
from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.piece_bounds import piece_bounds


def selective_scan(inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
    """Return the outputs as `RecurrentKernels.selective_scan` states them."""
    rows, b, c = (each.float() for each in (inputs.rows, inputs.b, inputs.c))
    steps = inputs.steps
    out = torch.empty_like(rows)
    for first, end, read, write in piece_bounds(pieces):
        state = states[read].clone()
        for token in range(first, end):
            state *= torch.exp(steps[token, :, None] * inputs.rates)
            state += (steps[token] * rows[token])[:, None] * b[token]
            out[token] = (state * c[token]).sum(1)
        states[write] = state
    if inputs.skip is not None:
        out += inputs.skip * rows
    return out.to(inputs.rows.dtype)
