"""The ranks of a model whose weights are divided among processes, as one of them sees them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class RankLost(Exception):
    """Another rank has left the group, or did not answer in time. No rank can go on."""


class Ranks(Protocol):
    """Every rank runs the same steps, and so calls the same of these in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` over all ranks, to the bit the same on each; `tensor` may be
        overwritten. Raises RankLost."""
        ...

    def gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the whole tensor, on every rank. `tensor` is this rank's part of its last
        dimension, of which rank i has `sizes[i]` elements. Raises RankLost."""
        ...


@dataclass(frozen=True, slots=True)
class WeightlessRanks:
    """Implements `Ranks` for a model without weights: one of `size` ranks, that says nothing to the
    others."""

    size: int
    rank: int = 0
    device: torch.device = torch.device("meta")

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        return tensor.new_empty(*tensor.shape[:-1], sum(sizes))
