"""Weights in fewer bits than the checkpoint has: logs what was quantised, and checks that the
logits are about the same. Where they are not, the model is refused and never served unquantised.
"""

import logging
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from quire.models.batch import Model
from quire.models.config import UnsupportedModel
from quire.models.layers.linears import PackedLinears
from quire.models.loading.batch_invariance import is_batch_invariant
from quire.models.loading.probe import FORWARD_ERRORS

logger = logging.getLogger(__name__)

MIB = 2**20
TOLERANCE: Mapping[torch.dtype, float] = {torch.float32: 1.0, torch.bfloat16: 1.0}
"""Shares of the logits' spread. The tests' families, with routers that then choose other experts,
came to 0.36 at most, and logits that are all zero would come to 2.1 at least."""
NUM_NAMED = 3


def log_quantised(module: nn.Module, packed: PackedLinears, model_type: str) -> None:
    """Log what is quantised and what is not. Raises UnsupportedModel if no weight is."""
    weights = [each.weight for each in packed.shared_weights]
    if not weights:
        raise UnsupportedModel(
            model_type, "none of their weights belongs to a linear layer that can be quantised"
        )
    others = _others(module, packed)
    num_bytes = sum(weight.packed.nbytes for weight in weights)
    left_bytes = sum(weight.nbytes for weight in others.values())
    largest = sorted(others, key=lambda name: -others[name].nbytes)[:NUM_NAMED]
    logger.info(
        "quantised %d weights from %.1f to %.1f MiB; %d of %.1f MiB stay (%.1f %%): %s",
        len(weights),
        sum(weight.plain_bytes for weight in weights) / MIB,
        num_bytes / MIB,
        len(others),
        left_bytes / MIB,
        100 * left_bytes / (num_bytes + left_bytes),
        ", ".join(largest) + (", ..." if len(others) > len(largest) else ""),
    )


def check_quantised(model: Model, model_type: str, tokens: tuple[int, ...], logits: Tensor) -> None:
    """Raise UnsupportedModel unless `model` gives about `logits` [vocab_size] after `tokens`.

    `model` is as for `is_batch_invariant`.
    """
    try:
        if is_batch_invariant(model, tokens, logits, tolerance=TOLERANCE):
            return
    except FORWARD_ERRORS as error:
        why = f"a forward over quantised weights failed: {error!r}"
        raise UnsupportedModel(model_type, why) from error
    raise UnsupportedModel(model_type, "with quantised weights they say something else")


def _others(module: nn.Module, packed: PackedLinears) -> dict[str, Tensor]:
    quantised: Collection[int] = {
        id(owner.get_parameter("weight")) for each in packed.shared_weights for owner in each.owners
    }
    return {
        name: weight for name, weight in module.named_parameters() if id(weight) not in quantised
    }
