"""Compares a module with a candidate for its replacement, within steps of the whole model: both
compute every call, and their results must be equal but for rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from quire.models.attention.backend import AttentionStep
from quire.models.attention.hook import AttentionContext
from quire.models.config import FORWARD_ERRORS, LayerFacts

Forward = Callable[..., object]

SMALL = 2.0**-7
"""The root mean square of a checked layer's input, at which the layer's contribution is visible."""


def root_mean_square(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def is_same(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Return whether two results are equal but for an error of `tolerance`, as a share of the root
    mean square of the expected one (`part_tolerance`)."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.numel() == 0:
        return True
    error = root_mean_square(found.float() - expected.float())
    return error <= tolerance * root_mean_square(expected)


class EquivalenceCheck(Protocol):
    """Stands in for the forward of `module`: computes as it does, and compares the candidate.

    is_equivalent: whether all calls agreed so far; None before the first one.
    """

    module: nn.Module
    candidate: Forward
    is_equivalent: bool | None

    def __call__(self, *args: Tensor, **options: object) -> object: ...


@dataclass(slots=True)
class AttentionRecorder:
    """Attends as `step` does, and keeps copies of the queries, keys and values that it gets."""

    step: AttentionStep
    inputs: list[Tensor] = field(default_factory=list)

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        self.inputs += [each.clone() for each in (query, key, value)]
        return self.step.attend(layer, query, key, value, sinks)


class AttentionCheck:
    """Checks an attention module, its queries, keys and values too: where a softmax is nearly even,
    the result shows little of them."""

    def __init__(
        self, module: nn.Module, candidate: Forward, context: AttentionContext, tolerance: float
    ) -> None:
        self.module = module
        self.candidate = candidate
        self.is_equivalent: bool | None = None
        self._forward = module.forward
        self._context = context
        self._tolerance = tolerance

    def __call__(self, *args: Tensor, **options: object) -> object:
        expected, inputs = self._compute(self._forward, args, options)
        try:
            found, its_inputs = self._compute(self.candidate, args, options)
            pairs = zip(
                (*its_inputs, *_tensors(found)), (*inputs, *_tensors(expected)), strict=True
            )
            is_equivalent = all(is_same(*pair, self._tolerance) for pair in pairs)
        except FORWARD_ERRORS:
            is_equivalent = False
        self.is_equivalent = is_equivalent and self.is_equivalent is not False
        return expected

    def _compute(
        self, forward: Forward, args: tuple[Tensor, ...], options: dict[str, object]
    ) -> tuple[object, list[Tensor]]:
        """Return the result of `forward`, and the arguments of its attention."""
        step = self._context.attention
        assert step is not None
        recorder = AttentionRecorder(step)
        self._context.attention = recorder
        try:
            return forward(*args, **options), recorder.inputs
        finally:
            self._context.attention = step


def _tensors(result: object) -> list[Tensor]:
    """Return the tensors of a result, or raise TypeError if it holds more than those and None."""
    values = result if isinstance(result, tuple) else (result,)
    parts = [part for part in values if part is not None]
    if not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(f"{result!r}")
    return parts


class LayerCheck:
    """Checks a decoder layer, on inputs that are scaled to SMALL. Each computation begins with the
    same states."""

    def __init__(
        self, module: nn.Module, candidate: Forward, context: AttentionContext, tolerance: float
    ) -> None:
        self.module = module
        self.candidate = candidate
        self.is_equivalent: bool | None = None
        self._forward = module.forward
        self._states = context.recurrent
        self._tolerance = tolerance

    def __call__(self, *args: Tensor, **options: object) -> object:
        states = self._states.saved()
        try:
            x = args[0] * (SMALL / root_mean_square(args[0]))
            expected = self._forward(x.clone(), *args[1:], **options)
            self._states.restore(states)
            found = self.candidate(x.clone(), *args[1:], **options)
            (pair,) = zip(_tensors(found), _tensors(expected), strict=True)
            is_equivalent = is_same(*pair, self._tolerance)
        except FORWARD_ERRORS:
            is_equivalent = False
        self.is_equivalent = is_equivalent and self.is_equivalent is not False
        self._states.restore(states)
        return self._forward(*args, **options)


class ModelCheck:
    """Checks the forward of the whole model by its logits, from the same states."""

    def __init__(
        self, module: nn.Module, candidate: Forward, context: AttentionContext, tolerance: float
    ) -> None:
        self.module = module
        self.candidate = candidate
        self.is_equivalent: bool | None = None
        self._forward = module.forward
        self._states = context.recurrent
        self._tolerance = tolerance

    def __call__(self, *args: Tensor, **options: object) -> object:
        states = self._states.saved()
        expected = self._forward(*args, **options)
        self._states.restore(states)
        try:
            found = self.candidate(*args, **options)
            is_equivalent = is_same(found.logits, expected.logits, self._tolerance)  # type: ignore[attr-defined]
        except FORWARD_ERRORS:
            is_equivalent = False
        self.is_equivalent = is_equivalent and self.is_equivalent is not False
        return expected
