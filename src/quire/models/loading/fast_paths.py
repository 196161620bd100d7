"""Gives a loaded model the kernels that compute it faster, each only where the logits stay the same
but for rounding. What is left out is logged as a warning, with why and what it costs.
"""

import logging
from collections.abc import Collection

from torch import Tensor

from quire.models.experts.replacement import choose_experts, has_experts
from quire.models.layers.greedy_head import use_greedy_head
from quire.models.layers.linears import MIB, PackedLinears, pack_linears
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.module_replacement import replace_modules
from quire.models.loading.checks.measure import Measured
from quire.models.loading.checks.noise import NOISES_APART, rounding_noise
from quire.models.loading.checks.packing import distance
from quire.models.loading.checks.probe import FORWARD_ERRORS
from quire.models.loading.checks.quantised import check_products, log_loss, log_quantised

logger = logging.getLogger(__name__)


def use_kernels(measured: Measured, kernels: ModelKernels, bound: float) -> tuple[str, ...]:
    """Pack the linear weights, replace modules by fused ones, and give the head candidate pruning.

    `bound` is how far rounding may take the logits. Returns a sentence for each part that is left
    out, which is logged too. Raises FailedCheck where quantised weights are multiplied wrongly, and
    UnsupportedModel where none can be quantised: a model is not served without what was asked for.
    """
    module = measured.loaded.module
    packed = pack_linears(module, kernels.linears, measured.other_uses, kernels.heads)
    expected = measured.redirected
    if not kernels.are_exact:
        expected, bound = _quantised(measured, packed)
    elif why := why_not(measured, expected, bound):
        packed.undo()
        return _left_out([_unpacked(packed, why)])
    replacements = replace_modules(
        module, kernels, measured.loaded.context, lambda: why_not(measured, expected, bound)
    )
    left_out = list(replacements.left_out)
    if why := why_not(measured, expected, bound):
        replacements.undo()
        left_out = [
            f"fused norms, MLPs and attention: {why}. torch computes them one by one, and a stream "
            "decodes at a fraction of the speed"
        ]
    use_greedy_head(module, kernels)
    return _left_out(left_out)


def use_experts(measured: Measured, bound: float) -> str:
    """Choose what computes experts, and return its name for logs."""
    loaded = measured.loaded
    if not has_experts(loaded.module):
        return "none"
    if loaded.device.type != "cuda":
        return "transformers"
    return choose_experts(
        loaded.module, loaded.device, lambda: measured.is_same(measured.redirected, bound)
    )


def why_not(measured: Measured, expected: Tensor, bound: float) -> str | None:
    """Return why the model, as its modules are now, does not give the `expected` logits, or
    None."""
    try:
        apart = distance(measured.packed_now(), expected)
    except FORWARD_ERRORS as error:
        return f"a forward failed: {error!r}"
    if apart <= bound:
        return None
    return f"logits are {apart:.2g} of their size apart, where rounding explains {bound:.2g}"


def _quantised(measured: Measured, packed: PackedLinears) -> tuple[Tensor, float]:
    """Check and log quantised weights, and return the logits over them and how far rounding takes
    these."""
    loaded = measured.loaded
    log_quantised(loaded.module, packed, loaded.facts.model_type)
    check_products(packed, loaded.facts.model_type)
    expected = measured.alone()
    log_loss(expected, measured.redirected)
    return expected, NOISES_APART * rounding_noise(loaded.module, measured.alone, expected)


def _unpacked(packed: PackedLinears, why: str) -> str:
    weights = [each.weight for each in packed.shared_weights]
    plain = sum(weight.plain_bytes for weight in weights) / MIB
    now = sum(weight.packed.nbytes for weight in weights) / MIB
    return (
        f"packed linear weights: {why}. torch multiplies by the plain ones, and a step reads "
        f"{plain:.0f} MiB in place of {now:.0f}"
    )


def _left_out(sentences: Collection[str]) -> tuple[str, ...]:
    for sentence in sentences:
        logger.warning("left out: %s", sentence)
    return tuple(sentences)
