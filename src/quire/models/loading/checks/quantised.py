"""Weights in fewer bits than the checkpoint has: checks that the kernels multiply by the packed
numbers, and logs what was quantised and what that changes. A loss of quality is told, never a
reason to refuse; a wrong product is one.
"""

import logging
import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from quire.models.config import FORWARD_ERRORS, FailedCheck, UnsupportedModel
from quire.models.layers.linears import PackedLinears, SharedWeight
from quire.models.loading.checks.own_text import Loss
from quire.models.rounding import BYTE_ROUNDING, RESULT_ROUNDING

logger = logging.getLogger(__name__)

MIB = 2**20
NUM_NAMED = 3
NUM_CHECK_ROWS = 3
CREST = 4.0
"""The largest of some thousand normal numbers, in their deviation: what activations are scaled
by."""
ADVICE = "Leave out --quantization to serve its weights as they are stored, and report this machine"


def log_quantised(module: nn.Module, packed: PackedLinears, model_type: str) -> None:
    """Log the quantized and the other weights. Raises UnsupportedModel without quantized ones."""
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


def check_products(packed: PackedLinears, model_type: str) -> None:
    """Raise FailedCheck unless the kernels multiply by the numbers that the packed weights hold,
    for one weight of each shape."""
    shapes = {
        (id(each.kernel), each.weight.num_rows, each.weight.num_columns): each
        for each in packed.shared_weights
    }
    for each in shapes.values():
        try:
            apart = _product_distance(each)
        except FORWARD_ERRORS as error:
            why = f"a product over quantised weights failed: {error!r}"
            raise FailedCheck(model_type, why, ADVICE) from error
        bound = product_bound(each.weight.packed.dtype)
        if not apart <= bound:
            shape = f"{each.weight.num_rows} x {each.weight.num_columns}"
            raise FailedCheck(
                model_type,
                f"products over quantised weights of {shape} are {apart:.2g} of their size from "
                f"those over the same weights in float32, where rounding explains {bound:.2g}",
                ADVICE,
            )


def product_bound(dtype: torch.dtype) -> float:
    """Return how far a product over quantised weights may be from that of the same numbers in
    float32, root mean square, as a share of its size.

    Activations are rounded to signed bytes, by at most BYTE_ROUNDING of the largest, which is
    CREST of their deviation; the unpacked weights and the result are rounded to `dtype`. Each is
    spread evenly, with a root mean square of 1 / sqrt(3) of the largest, and a bound holds twice
    that.
    """
    roundings = (CREST * BYTE_ROUNDING, RESULT_ROUNDING[dtype], RESULT_ROUNDING[dtype])
    return 2 * math.hypot(*roundings) / math.sqrt(3)


def _product_distance(shared: SharedWeight) -> float:
    weight, kernel = shared.weight, shared.kernel
    generator = torch.Generator().manual_seed(weight.num_columns)
    x = torch.randn(NUM_CHECK_ROWS, weight.num_columns, generator=generator).to(weight.packed)
    expected = linear(x.float(), kernel.unpack(weight).float())
    found = kernel.linear(x, weight, None).float()
    if found.shape != expected.shape:
        return math.inf
    size = expected.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return float((found - expected).square().mean().sqrt() / size)


def log_loss(loss: Loss | None) -> None:
    """Log how much quantized weights change the next-token probabilities, if known."""
    if loss is None:
        return
    logger.info(
        "quantised weights change the perplexity of a text of %d tokens from %.3f to %.3f "
        "(%+.2f %%), and the next token's distribution by %.4f nats (KL divergence)",
        loss.num_tokens,
        loss.before,
        loss.after,
        100 * (loss.after / loss.before - 1),
        loss.divergence,
    )


def _others(module: nn.Module, packed: PackedLinears) -> dict[str, Tensor]:
    quantised: Collection[int] = {
        id(owner.get_parameter("weight")) for each in packed.shared_weights for owner in each.owners
    }
    return {
        name: weight for name, weight in module.named_parameters() if id(weight) not in quantised
    }
