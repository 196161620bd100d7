"""The parts of a weight that a rank keeps: ranges of its rows or columns."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quire.models.parallel.linears import RowParallelLinear
from quire.models.parallel.ranks import Ranks
from quire.models.weights.lazy_weight import join_rows, narrow


def keep_outputs(layer: nn.Linear | nn.Conv1d, ranges: Sequence[range]) -> None:
    """Leave a layer these of its outputs, and a convolution their channels, each of which is
    convolved by itself."""
    set_weight(layer, "weight", rows_of(layer.get_parameter("weight").data, ranges))
    if layer.bias is not None:
        set_weight(layer, "bias", rows_of(layer.bias.data, ranges))
    size = sum(map(len, ranges))
    if isinstance(layer, nn.Linear):
        layer.out_features = size
    else:
        layer.in_channels = layer.out_channels = layer.groups = size


def keep_inputs(linear: nn.Linear, inputs: range, ranks: Ranks) -> RowParallelLinear:
    """Leave a layer these of its inputs, and return the module that sums its products."""
    bias = linear.bias
    linear.register_parameter("bias", None)
    set_weight(linear, "weight", narrow(linear.weight.data, 1, inputs.start, len(inputs)))
    linear.in_features = len(inputs)
    return RowParallelLinear(linear, bias, ranks)


def rows_of(whole: Tensor, ranges: Sequence[range], dim: int = 0) -> Tensor:
    """Return a copy of ranges of a weight's rows, one after another, or a view of a single range
    where the weight is one of its file."""
    parts = [narrow(whole, dim, rows.start, len(rows)) for rows in ranges]
    return join_rows(parts) if dim == 0 else torch.cat(parts, dim)


def set_weight(owner: nn.Module, name: str, weight: Tensor) -> None:
    """Replace a parameter of `owner`."""
    setattr(owner, name, nn.Parameter(weight, requires_grad=False))
