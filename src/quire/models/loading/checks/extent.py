"""Compares what the files hold with the configuration. Where it describes far more, it is refused
before anything of that size is built: a file of some kilobytes may name a billion layers."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from quire.models.config import CheckpointError
from quire.models.loading.safetensors.stored_tensors import StoredTensor

logger = logging.getLogger(__name__)

MIB = 1 << 20
SLACK, FREE = 2, 1 << 20
"""A configuration may describe SLACK times the numbers in the files, and FREE beside."""


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


def log_left_out(module: nn.Module, tensors: Sequence[StoredTensor]) -> None:
    """Log the weights of the files that the model's class leaves out by their names, such as heads
    that predict further tokens, and parts that see."""
    patterns = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    for pattern in patterns:
        found = [tensor for tensor in tensors if re.search(pattern, tensor.name)]
        if found:
            logger.info(
                "left out: %d weights of %.1f MiB named %s, which generating text does not use",
                len(found),
                sum(tensor.num_bytes for tensor in found) / MIB,
                pattern.lstrip("^"),
            )
