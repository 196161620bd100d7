"""Watches a forward: what its weights are operands of, and how large the inputs of linear layers
are."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from torch.overrides import TorchFunctionMode


class WeightUses(TorchFunctionMode):
    """Records, while active, what parameters are operands of. Some families compute with a layer's
    weight and never call the layer.

    others: the `id` of each parameter that is an operand of anything but a linear layer's product
        or an embedding's look-up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.others: set[int] = set()
        self._squares: dict[int, tuple[Tensor, int]] = {}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is linear:
            self._measure(*args[:2])
        elif func is not embedding and func.__name__ != "__get__":
            self.others.update(id(each) for each in args if isinstance(each, nn.Parameter))
        return func(*args, **(kwargs or {}))

    def input_sizes(self, weight: nn.Parameter) -> Tensor | None:
        """Return the root mean squares [K] float32 of the columns of all x that linear layers have
        multiplied by `weight`, or None if there were none."""
        squares, num_rows = self._squares.get(id(weight), (torch.zeros(()), 0))
        return (squares / num_rows).sqrt() if num_rows else None

    def _measure(self, x: object = None, weight: object = None) -> None:
        if isinstance(x, Tensor) and isinstance(weight, nn.Parameter) and x.numel():
            rows = x.detach().flatten(0, -2).float()
            squares, num_rows = self._squares.get(id(weight), (torch.zeros(()), 0))
            self._squares[id(weight)] = squares + rows.square().sum(0), num_rows + len(rows)
