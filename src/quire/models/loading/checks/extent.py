"""Refuses configurations that describe far more than the files hold, before anything of that size
is built: a file of some kilobytes may name a billion layers."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from quire.models.config import CheckpointError
from quire.models.loading.safetensors.stored_tensors import StoredTensor

SLACK, FREE = 2, 1 << 20
"""The maximum number of missing weights that a refusal names."""


def refuse_more_layers(folder: Path, num_layers: int, tensors: Sequence[StoredTensor]) -> None:
    """Raise CheckpointError where the files have not a tensor for each layer. Without any tensor
    nothing is known."""
    if tensors and num_layers > len(tensors):
        raise CheckpointError(
            f"{folder}: its configuration has {num_layers:,} layers, and its files hold "
            f"{len(tensors):,} tensors in all"
        )


def refuse_more_weights(folder: Path, module: nn.Module, tensors: Sequence[StoredTensor]) -> None:
    """Raise CheckpointError where the model has far more numbers than the files can hold."""
    if not tensors:
        return
    num_wanted = sum(parameter.numel() for parameter in module.parameters())
    num_stored = sum(tensor.num_elements for tensor in tensors)
    if num_wanted > SLACK * num_stored + FREE:
        raise CheckpointError(
            f"{folder}: its configuration describes {num_wanted:,} weights, and its files hold "
            f"{num_stored:,}"
        )
