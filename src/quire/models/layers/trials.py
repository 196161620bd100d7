"""Runs a module as it is and a candidate for its place beside it, within steps of the whole model,
and tells whether they say the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from quire.models.attention.backend import AttentionStep
from quire.models.attention.port import CurrentStep
from quire.models.config import LayerFacts
from quire.models.loading.probe import FORWARD_ERRORS

Forward = Callable[..., object]

TOLERANCE = 0.02
"""How far a part may be from what it stands for, of the latter's root mean square: both round to
bfloat16 several times."""
SMALL = 2.0**-7
"""The root mean square of what a layer is tried on, so that what it adds can be seen."""


def root_mean_square(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def is_same(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.numel() == 0:
        return True
    error = root_mean_square(found.float() - expected.float())
    return error <= TOLERANCE * root_mean_square(expected)


class Trial(Protocol):
    """In the place of `module`'s forward. `is_good`: None until it was called."""

    module: nn.Module
    candidate: Forward
    is_good: bool | None

    def __call__(self, *args: Tensor, **options: object) -> object: ...


@dataclass(slots=True)
class Listener:
    """Attends as `step` does, and keeps what it was given."""

    step: AttentionStep
    heard: list[Tensor] = field(default_factory=list)

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        self.heard += [each.clone() for each in (query, key, value)]
        return self.step.attend(layer, query, key, value, sinks)


class AttentionTrial:
    """Query, key and value must be the same too: where a softmax is nearly even, what comes out
    shows little of them."""

    def __init__(self, module: nn.Module, candidate: Forward, current: CurrentStep) -> None:
        self.module = module
        self.candidate = candidate
        self.is_good: bool | None = None
        self._forward = module.forward
        self._current = current

    def __call__(self, *args: Tensor, **options: object) -> object:
        expected, heard = self._hear(self._forward, args, options)
        try:
            found, heard_too = self._hear(self.candidate, args, options)
            pairs = zip((*heard_too, *_parts(found)), (*heard, *_parts(expected)), strict=True)
            is_good = all(is_same(*pair) for pair in pairs)
        except FORWARD_ERRORS:
            is_good = False
        self.is_good = is_good and self.is_good is not False
        return expected

    def _hear(
        self, forward: Forward, args: tuple[Tensor, ...], options: dict[str, object]
    ) -> tuple[object, list[Tensor]]:
        """What it returns, and what attention was given."""
        step = self._current.attention
        assert step is not None
        listener = Listener(step)
        self._current.attention = listener
        try:
            return forward(*args, **options), listener.heard
        finally:
            self._current.attention = step


def _parts(said: object) -> list[Tensor]:
    """The tensors, where that is all but None that was said."""
    parts = [part for part in (said if isinstance(said, tuple) else (said,)) if part is not None]
    if not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(f"{said!r}")
    return parts


class LayerTrial:
    def __init__(self, module: nn.Module, candidate: Forward) -> None:
        self.module = module
        self.candidate = candidate
        self.is_good: bool | None = None
        self._forward = module.forward

    def __call__(self, *args: Tensor, **options: object) -> object:
        try:
            x = args[0] * (SMALL / root_mean_square(args[0]))
            expected = self._forward(x.clone(), *args[1:], **options)
            found = self.candidate(x.clone(), *args[1:], **options)
            (pair,) = zip(_parts(found), _parts(expected), strict=True)
            is_good = is_same(*pair)
        except FORWARD_ERRORS:
            is_good = False
        self.is_good = is_good and self.is_good is not False
        return self._forward(*args, **options)


class ModelTrial:
    def __init__(self, module: nn.Module, candidate: Forward) -> None:
        self.module = module
        self.candidate = candidate
        self.is_good: bool | None = None
        self._forward = module.forward

    def __call__(self, *args: Tensor, **options: object) -> object:
        expected = self._forward(*args, **options)
        try:
            found = self.candidate(*args, **options)
            is_good = is_same(found.logits, expected.logits)  # type: ignore[attr-defined]
        except FORWARD_ERRORS:
            is_good = False
        self.is_good = is_good and self.is_good is not False
        return expected
