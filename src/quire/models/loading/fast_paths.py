"""Gives a loaded model faster kernels, each only if the logits stay equal up to rounding. A
disabled optimization is logged as a warning, with the reason and the cost."""

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from torch import Tensor, nn

from quire.models.config import FORWARD_ERRORS, UnsupportedModel
from quire.models.experts.replacement import choose_experts, has_experts
from quire.models.layers.linears import MIB, PackedLinears, pack_linears
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.module_replacement import replace_modules
from quire.models.layers.weight_uses import WeightUses
from quire.models.loading.checks.measure import ModuleMeasurement
from quire.models.loading.checks.noise import NOISES_APART, rounding_noise
from quire.models.loading.checks.own_text import Loss, OwnText
from quire.models.loading.checks.packing import distance
from quire.models.loading.checks.quantised import check_products, log_loss, log_quantised
from quire.models.loading.kept_weights import PackedWeightsFile, PackingResult
from quire.models.weights.lazy_weight import widen_all

logger = logging.getLogger(__name__)


class ModuleBaseline(NamedTuple):
    """A module as it was seen with the weights that were read, by its own attention.

    own: logits [rows, vocab_size] of the checks' tokens.
    uses: what weights were used for.
    text: where weights are to be quantised.
    file: where packed weights are kept.
    kept: what was packed already, since an earlier load had kept it.
    """

    own: Tensor
    uses: WeightUses
    text: OwnText | None
    file: PackedWeightsFile | None = None
    kept: PackingResult | None = None

    def keep(self, module: nn.Module, packed: PackedLinears, loss: Loss | None = None) -> None:
        """Keep packed weights for the next load, if there is a file for them."""
        if self.file is not None:
            self.file.keep(module, packed, loss)


class InitialCheck(NamedTuple):
    """A first look at a module: logits [rows, vocab_size] of the checks' tokens by its own
    attention, and how far rounding may take logits.

    left_out: a sentence for each faster way of computing that is left out.
    """

    own: Tensor
    bound: float
    left_out: tuple[str, ...] = ()


def look(
    module: nn.Module,
    own_logits: Callable[[], Tensor],
    seen: ModuleBaseline,
    kernels: ModelKernels | None,
) -> InitialCheck:
    """Pack the linear weights for kernels that are exact, so that a weight which is stored in fewer
    bits is widened once and not by each forward of the checks, and return a look at the module.
    """
    left_out = []
    if kernels is None:
        widen_all(module)
    elif kernels.are_exact and seen.kept is None:
        packed = pack_linears(module, kernels.linears, seen.uses, kernels.heads)
        try:
            found = own_logits()
            bound = NOISES_APART * rounding_noise(module, own_logits, found)
            apart = distance(found, seen.own)
            if apart <= bound:
                seen.keep(module, packed)
                return InitialCheck(found, bound)
            why = _too_far(apart, bound)
        except UnsupportedModel as error:
            why = str(error)
        packed.undo()
        left_out = [_unpacked(packed, why)]
    bound = NOISES_APART * rounding_noise(module, own_logits, seen.own)
    return InitialCheck(seen.own, bound, _left_out(left_out))


def use_kernels(
    measured: ModuleMeasurement, kernels: ModelKernels, bound: float, seen: ModuleBaseline
) -> tuple[str, ...]:
    """Quantise the linear weights if the kernels do, and replace modules by fused ones.

    `bound` is how far rounding may take the logits. Returns a sentence for each part that is left
    out, which is logged too. Raises FailedCheck where quantised weights are multiplied wrongly, and
    UnsupportedModel where none can be quantised: a model is not served without what was asked for.
    """
    module = measured.loaded.module
    expected = measured.redirected
    if not kernels.are_exact:
        expected, bound = _quantised(measured, kernels, bound, seen)
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
    return _left_out(left_out)


def use_experts(measured: ModuleMeasurement, bound: float) -> str:
    """Choose the kernels of experts, and return their name for logs."""
    loaded = measured.loaded
    if not has_experts(loaded.module):
        return "none"
    if loaded.device.type != "cuda":
        return "transformers"
    return choose_experts(
        loaded.module, loaded.device, lambda: measured.is_same(measured.redirected, bound)
    )


def why_not(measured: ModuleMeasurement, expected: Tensor, bound: float) -> str | None:
    """Return why the model, as its modules are now, does not give the `expected` logits, or
    None."""
    try:
        apart = distance(measured.packed_now(), expected)
    except FORWARD_ERRORS as error:
        return f"a forward failed: {error!r}"
    return None if apart <= bound else _too_far(apart, bound)


def _too_far(apart: float, bound: float) -> str:
    return f"logits are {apart:.2g} of their size apart, where rounding explains {bound:.2g}"


def _quantised(
    measured: ModuleMeasurement, kernels: ModelKernels, bound: float, seen: ModuleBaseline
) -> tuple[Tensor, float]:
    """Quantise the linear weights unless they were kept so, check and log them, and return the
    logits over them and how far rounding takes these."""
    loaded = measured.loaded
    module, model_type = loaded.module, loaded.facts.model_type
    if seen.kept is not None:
        log_quantised(module, seen.kept.packed, model_type)
        log_loss(seen.kept.loss)
        return measured.redirected, bound
    packed = pack_linears(module, kernels.linears, seen.uses, kernels.heads)
    log_quantised(module, packed, model_type)
    check_products(packed, model_type)
    expected = measured.alone()
    loss = None if seen.text is None else seen.text.loss(loaded)
    log_loss(loss)
    seen.keep(module, packed, loss)
    return expected, NOISES_APART * rounding_noise(module, measured.alone, expected)


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
