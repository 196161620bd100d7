"""The causal convolution of `RecurrentKernels` in torch, token by token: each result is a function
of the last rows alone, to the bit, whatever else is in the step."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from quire.models.recurrent.pieces import Pieces
from quire.models.recurrent.reference.piece_bounds import piece_bounds


def causal_conv(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    pieces: Pieces,
    *,
    is_activated: bool,
) -> Tensor:
    """Return the convolution as `RecurrentKernels.causal_conv` states it."""
    wide, weights = rows.float(), weight.float().t().contiguous()
    offset = torch.zeros_like(weights[0]) if bias is None else bias.float()
    out = torch.empty_like(wide)
    for first, end, read, write in piece_bounds(pieces):
        window = [*states[read].t().contiguous()]
        for token in range(first, end):
            window.append(wide[token])
            total = offset
            for row, factors in zip(window, weights, strict=True):
                total = total + row * factors
            out[token] = silu(total) if is_activated else total
            del window[0]
        if window:
            states[write] = torch.stack(window, dim=1)
    return out.to(rows.dtype)
