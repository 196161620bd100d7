"""Measures how far rounding alone takes a model's logits, by Monte Carlo arithmetic.

The same forward is computed several times, and every result of a module is changed at random by as
much as its rounding may be: the spread of the logits is the model's own noise (D. Stott Parker,
Monte Carlo Arithmetic, UCLA CSD-970002, 1997).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from quire.models.loading.checks.packing import distance
from quire.models.rounding import RESULT_ROUNDING

NUM_RUNS = 4
NOISES_APART = 3.0
"""The distance of two correct computations, in noises: each has noise of its own, sqrt(2) together,
and NUM_RUNS runs tell its size to within a factor of two (the root mean square of four normal
numbers is below half of their deviation in 1 of 100 draws)."""


def rounding_noise(
    module: nn.Module, compute_logits: Callable[[], Tensor], expected: Tensor
) -> float:
    """Return the distance from the `expected` logits that rounding leads to, root mean square.

    `compute_logits` runs `module`, and returns the logits without noise or with it.
    """
    squares = []
    with _perturbed(module, expected.device):
        for _ in range(NUM_RUNS):
            squares.append(distance(compute_logits(), expected) ** 2)
    return float((sum(squares) / NUM_RUNS) ** 0.5)


@contextmanager
def _perturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Change the results of all modules without parts at random, for the time of the context."""
    noise = _Noise(torch.Generator(device).manual_seed(0))
    leaves = [part for part in module.modules() if next(part.children(), None) is None]
    handles = [part.register_forward_hook(noise) for part in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Noise:
    """A forward hook that changes each number of a result by at most its rounding."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, module: nn.Module, args: object, output: object) -> object:
        if isinstance(output, tuple):
            return tuple(self._change(each) for each in output)
        return self._change(output)

    def _change(self, result: object) -> object:
        if not isinstance(result, Tensor) or result.dtype not in RESULT_ROUNDING:
            return result
        spread = torch.rand(result.shape, generator=self._generator, device=result.device) * 2 - 1
        changed = result.float() * (1 + RESULT_ROUNDING[result.dtype] * spread)
        return changed.to(result.dtype)
