"""Checks a family's code with a configuration, before its weights are read: a shrunken copy with
random float32 weights must say the same by its own attention, redirected, and packed.
"""

import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.models.config import FailedCheck, UnsupportedModel
from quire.models.loading.checks.measure import ModuleMeasurement, measure, own_logits
from quire.models.loading.checks.packing import NUM_TOKENS
from quire.models.loading.checks.shrunken import build_random, small_copies

if TYPE_CHECKING:
    from transformers import PretrainedConfig

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
NUM_SEEDS = 3
"""A fault of code shows with any weights. With some, rounding may lead a router, whose best experts
are nearly equal, to another choice: a second draw has no such tie."""
LAMBDA = 6.0
"""Deviations of a sum of roundings that go either way (Higham and Mary, 2019, theorem 2.4): one in
3e7 sums is off by more."""
UNIT = 2.0**-24
ADVICE = (
    "The fault is one of code, in this version of transformers or in how Quire calls it, and no "
    "option helps: try another version of transformers, and report the model"
)


def check_structure(config: "PretrainedConfig", skeleton: nn.Module) -> bool:
    """Return whether a small copy of the model was checked. Raises FailedCheck if its requests
    change each other, or it differs from itself with attention redirected.

    `skeleton` is the module without weights.
    """
    for small in small_copies(config, skeleton):
        try:
            _check(small)
        except FailedCheck:
            raise
        except UnsupportedModel as error:
            logger.debug("a small copy of this model does not run: %s", error)
        else:
            return True
    logger.info(
        "no small copy of this %s can be made: its code is checked by its weights alone",
        config.model_type,
    )
    return False


def _check(small: "PretrainedConfig") -> None:
    """Check a small copy. Raises FailedCheck, and UnsupportedModel where it does not run."""
    for seed in range(NUM_SEEDS):
        measured = _measure(small, seed)
        try:
            measured.refuse_beyond(rounding_bound(small, measured), ADVICE)
            return
        except FailedCheck:
            if seed == NUM_SEEDS - 1:
                raise


def _measure(config: "PretrainedConfig", seed: int) -> ModuleMeasurement:
    from quire.models.loading import pretrained

    module = build_random(config, seed)
    with pretrained.quiet():
        return measure(module, config, own_logits(module, config), CPU)


def rounding_bound(config: "PretrainedConfig", measured: ModuleMeasurement) -> float:
    """Return how far float32 rounding alone takes the logits, as `distance` tells it.

    A number goes, layer after layer, through four sums over the hidden size, one over the keys and
    one over the width of the MLP, and through one over the hidden size in the head: a chain of n
    terms, after which it is off by LAMBDA sqrt(n) u at most, relative to the largest logit.
    """
    width = int(config.hidden_size)
    widths = getattr(config, "intermediate_size", None) or 4 * width
    mlp = max(widths) if isinstance(widths, list) else int(widths)
    num_terms = config.num_hidden_layers * (4 * width + NUM_TOKENS + mlp) + width
    relative = LAMBDA * math.sqrt(num_terms) * UNIT
    return 2 * relative * _largest_share(measured.redirected.double())


def _largest_share(logits: Tensor) -> float:
    """Return the largest logit in parts of the root mean square of centred ones."""
    centred = logits - logits.mean(-1, keepdim=True)
    return float(logits.abs().max() / centred.square().mean().sqrt().clamp(min=1e-30))
